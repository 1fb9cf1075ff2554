"""Keys that look like any other random text: what gives them away is the name of their provider before them.

`HEROKU_API_KEY=…`, `"datadog_key": "…"`, `<okta.token>…`: the name, at most a few words more, a sign that gives a
value, and a value of just the provider's alphabet and length with a digit in it.
"""

from __future__ import annotations

from agentcli.safety.secrets.rule import Rule, has_random_digits

# The rest of the name; quotes and brackets that end it; what gives a value; quotes that open one.
GIVES = r"[\w.\- \t]{0,32}[\"'\]\\ \t]{0,24}[=:>,?|]{1,4}(?:[=:>|\"'` \t]|\\+(?=[\"'])){0,24}"
_END = r"(?![\w+/-])"
# Names whose last word says that the value is known: a hash, a version, the id of something that happened.
_NAME_ENDS = r"[\d_.\- \t]{0,9}[\"'\]\\ \t]{0,24}[=:>,?|]"
_WORD_BEGINS = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"
_KNOWN = (
    r"[\w.\- \t]{0,32}?" + _WORD_BEGINS + r"(?:(?i:(?:sha\d{0,3}|md5|crc\d{0,2}|check|chk)[_.\-]?(?:sums?)?|sums?"
    r"|commit(?:ted)?|revision|rev|ref|digest|hash(?:es)?|etag|fingerprint|thumbprint|version|ver|tag|branch|tree|blob"
    r"|build|release|snapshot|integrity|image|layer)(?![A-Za-z])|(?!(?i:client|access|app|application|api|apikey|key"
    r"|secret|token|consumer|oauth|account)[_.\- \t]?(?i:id|uuid))(?:[A-Z]?[a-z]{1,20}|[A-Z]{1,20})[_.\- \t]?"
    r"(?:[Ii]d|ID|[UGug]uid|[UG]UID)s?(?![A-Za-z]))" + _NAME_ENDS
)
# Hashes and ids are told with a bare name, and in prose and tables: there a further word has to say what they are.
_HASH = r"(?:[\da-f]{32}|[\da-f]{40}|[\da-f]{64}|[\dA-F]{32}|[\dA-F]{40}|[\dA-F]{64}|{U})" + _END
_TOLD = (
    r"(?:[\"'\]\\ \t]{0,24}[:,|]|(?:(?!(?i:key|token|secret|pass|auth|api|login|cred|client))[\w.\- \t]){0,32}"
    r"[\"'\]\\ \t]{0,24}[,|](?=[ \t]))(?![=:>,?|])[ \t\"']{0,9}" + _HASH
)


def spellings(words: str) -> str:
    """The ways a name is written, divided by spaces: new-relic, NEW_RELIC, newRelic. `meraKit` is not one of Meraki."""
    parts = words.split("-")
    found: dict[str, None] = {}
    for joint in ("", "-", "_", "."):
        title = [part.title() for part in parts]
        for spelled in (parts, title, [part.upper() for part in parts], [parts[0], *title[1:]]):
            found[joint.join(spelled)] = None
    return " ".join(found)


_ROWS = r"""
adafruit-key        adafruit            [\w-]{32}              {a32}
adobe-id            adobe               [\da-f]{32}            {h32}
airtable-key        airtable            [\da-zA-Z]{17}         {a17}
algolia-key         algolia             [\da-z]{32}            {a32}
alibaba-secret      alibaba aliyun      [\da-zA-Z]{30}         {a30}
asana-id            asana               \d{16}                 {d16}
asana-secret        asana               [\da-z]{32}            {a32}
atlassian-token     atlassian jira confluence  [\da-zA-Z]{24}  {a24}
aws-secret-key      aws-secret secret-access-key  [\da-zA-Z+/]{40}  {w40}
beamer-key          beamer              b_[\w=-]{44}           b_{a44}
bitbucket-id        bitbucket           [\da-z]{32}            {a32}
bitbucket-secret    bitbucket           [\w=-]{64}             {a64}
bittrex-key         bittrex             [\da-z]{32}            {a32}
clickhouse-key      clickhouse          4b1d[\da-zA-Z]{38}     4b1d{w38}
cloudant-key        cloudant cl-key cl-pass cl-pw cl-api cl-auth  (?:[\da-f]{64}|[a-z]{24})  {h64}
cloudflare-key      cloudflare          [\w-]{40}              {u40}
cloudflare-key      cloudflare          [\da-f]{37}            {h37}
codecov-token       codecov             [\da-z]{32}            {a32}
cohere-key          cohere co-api       [\da-zA-Z]{40}         {w40}
coinbase-token      coinbase            [\w-]{64}              {a64}
confluent-key       confluent           [\da-z]{16}            {a16}
confluent-secret    confluent           [\da-zA-Z]{64}         {a64}
contentful-token    contentful          [\w=-]{43}             {u43}
datadog-key         datadog             [\da-z]{40}            {a40}
datadog-key         datadog             [\da-f]{32}            {h32}
discord-id          discord             \d{18}                 {d18}
discord-secret      discord             [\w=-]{32}             {u32}
discord-key         discord             [\da-f]{64}            {h64}
droneci-token       droneci drone-ci    [\da-z]{32}            {a32}
dropbox-secret      dropbox             [\da-z]{15}            {a15}
dropbox-token       dropbox             [\da-z]{11}AAAAAAAAAA[\w=-]{43}  {a11}AAAAAAAAAA{a43}
etsy-key            etsy                [\da-z]{24}            {a24}
facebook-secret     facebook            [\da-f]{32}            {h32}
fastly-token        fastly              [\w=-]{32}             {u32}
finicity-secret     finicity            [\da-z]{20}            {a20}
finicity-key        finicity            [\da-f]{32}            {h32}
finnhub-key         finnhub             [\da-z]{20}            {a20}
flickr-key          flickr              [\da-z]{32}            {a32}
freemius-key        secret-key          sk_[\x21-\x7e]{29}    sk_{w29}
freshbooks-token    freshbooks          [\da-z]{64}            {a64}
gitter-token        gitter              [\w-]{40}              {a40}
gocardless-token    gocardless          live_[\w=-]{40}        live_{u40}
heroku-key          heroku              {U}                     {U}
hubspot-key         hubspot             {U}                     {U}
ibm-key             ibm iam cloud-api   [\w-]{44}              {u44}
ibm-cos-secret      ibm-cos cos-hmac secret-access-key  [\da-f]{48}  {h48}
intercom-key        intercom            [\w=-]{60}             {u60}
jfrog-key           jfrog artifactory bintray xray  [\da-z]{64}  {a64}
jfrog-key           jfrog artifactory bintray xray  [\da-z]{73}  {a73}
kraken-key          kraken              [\w+/=-]{80,90}        {u85}
kucoin-key          kucoin              [\da-f]{24}            {h24}
kucoin-secret       kucoin              {U}                     {U}
launchdarkly-key    launchdarkly        [\w=-]{40}             {a40}
linear-secret       linear              [\da-f]{32}            {h32}
linkedin-id         linkedin linked-in  [\da-z]{14}            {a14}
linkedin-secret     linkedin linked-in  [\da-zA-Z]{16}         {a16}
lob-key             lob                 (?:live|test)_(?:pub_)?[\da-f]{31,35}  live_{h35}
looker-id           looker              [\da-z]{20}            {a20}
looker-secret       looker              [\da-z]{24}            {a24}
mailchimp-key       mailchimp           [\da-f]{32}-us\d\d   {h32}-us20
mailgun-key         mailgun             (?:key-|pubkey-)?[\da-f]{32}  key-{h32}
mailgun-signing     mailgun             [\da-z]{32}-[\da-z]{8}-[\da-z]{8}  {h32}-{h8}-{h8}
mapbox-token        mapbox              pk\.[\da-z]{60}\.[\da-z]{22}  pk.{a60}.{a22}
mattermost-token    mattermost          [\da-z]{26}            {a26}
maxmind-key         maxmind             [\da-zA-Z]{16}         {w16}
meraki-key          meraki              [\da-f]{40}            {h40}
messagebird-key     message-bird        [\da-zA-Z]{25}         {a25}
messagebird-id      message-bird        {U}                     {U}
netlify-token       netlify             [\w=-]{40,46}          {u43}
new-relic-id        new-relic           [\da-z]{64}            {a64}
new-relic-key       new-relic           NR(?:AK|JS|II|AL)-[\da-zA-Z-]{19,40}  NRJS-{h19}
nytimes-key         nytimes new-york-times  [\w=-]{32}         {a32}
okta-token          okta                00[\w=-]{39,40}        00{u40}
plaid-id            plaid               [\da-z]{24}            {a24}
plaid-secret        plaid               [\da-z]{30}            {a30}
privateai-token     private-ai          [\da-z]{32}            {a32}
rapidapi-key        rapidapi rapid-api  [\w-]{50}              {a50}
sendbird-token      sendbird            [\da-f]{40}            {h40}
sendbird-id         sendbird            {U}                     {U}
sentry-token        sentry              [\da-f]{64}            {h64}
snyk-token          snyk                {U}                     {U}
softlayer-key       softlayer sl-api sl-key sl-token sl-user  [\da-z]{64}  {h64}
sonar-token         sonar               (?:sq[upa]_)?[\w=-]{40}  {h40}
sourcegraph-token   sourcegraph         [\da-fA-F]{40}         {h40}
squarespace-token   squarespace         {U}                     {U}
sumologic-id        sumo                su[\da-zA-Z]{12}       su{w12}
sumologic-key       sumo                [\da-zA-Z]{64}         {w64}
telegram-token      telegr telegram     \d{5,16}:A[\w-]{34}   {d9}:A{u34}
travis-token        travis              [\w-]{22}              {a22}
trello-token        trello              [\da-zA-Z-]{32}        {a32}
trello-token        trello              [\da-f]{64}            {h64}
twitch-token        twitch              [\da-z]{30}            {a30}
twitter-token       twitter             \d{15,25}-[\da-zA-Z]{20,40}  {d18}-{w30}
twitter-key         twitter             [\da-zA-Z]{25}         {w25}
twitter-secret      twitter             [\da-zA-Z]{45}         {w45}
twitter-secret      twitter             [\da-zA-Z]{50}         {w50}
yandex-key          yandex              AQVN[\w-]{35,38}       AQVN{u36}
yandex-secret       yandex              YC[\w-]{38}            YC{u38}
zendesk-key         zendesk             [\da-z]{40}            {a40}
"""


def _named(name: str, words: list[str], value: str, like: str) -> Rule:
    word = "|".join(word.replace("-", "[-_.]?") for word in words)
    return Rule(
        name,
        " ".join(spellings(word) for word in words),
        f"(?i:{word})(?!{_KNOWN}|{_TOLD}){GIVES}({value}){_END}",
        f"{words[0].upper().replace('-', '_')}_VALUE={like}",
        is_secret=has_random_digits,
        bounds=False,
    )


def _read(row: str) -> Rule:
    name, *words, value, like = row.split()
    return _named(name, words, value, like)


NAMED = tuple(_read(row) for row in _ROWS.strip().splitlines())
