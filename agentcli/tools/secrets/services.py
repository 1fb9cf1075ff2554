"""Tokens of services, from payment to chat to models, that say what they are by how they begin.

As in `platforms`, the formats are the providers' own.
"""

from __future__ import annotations

from agentcli.tools.secrets.rule import Rule, anything, has_random_digits

# A number of 5 to 16 digits, as a word or in a URL of its bot; what is looked for begins with its last digit.
_BOT_NUMBER = "|".join(rf"(?<=(?<![0-9A-Za-z])\d{{{count}}})|(?<=/bot\d{{{count}}})" for count in range(4, 16))

MODELS = (
    Rule(
        "anthropic-key",
        "sk-ant-",
        r"sk-ant-[a-z]{3,8}\d\d-[\w-]{60,140}",
        "sk-ant-api03-{u93}AA",
        "sk-ant-api03-{u8}",
    ),
    Rule(
        "openai-key",
        "sk-",
        # The newer ones hold "OpenAI" in base64; other services use the same two letters with a body of their own.
        r"sk-(?:[\w-]{10,150}T3BlbkFJ[\w-]{10,150}|(?!proj-|svcacct-|admin-)[\w-]{20,200})(?![\w-])",
        "sk-proj-{u60}T3BlbkFJ{u60}",
        "sk-fading-circle-indicator",
        has_random_digits,
    ),
    Rule("openai-session", "sess-", r"sess-[0-9A-Za-z]{40}", "sess-{w40}"),
    Rule("huggingface-token", "hf_", r"hf_[A-Za-z0-9]{34,37}", "hf_{w34}", "hf_{w20}"),
    Rule("huggingface-token", "api_org_", r"api_org_[A-Za-z]{34}", "api_org_{l34}", "api_org_{l10}"),
    Rule("perplexity-key", "pplx-", r"pplx-[0-9A-Za-z]{48}", "pplx-{w48}"),
    Rule("replicate-token", "r8_", r"r8_[0-9A-Za-z]{37}", "r8_{w37}"),
    Rule("groq-key", "gsk_", r"gsk_[0-9A-Za-z]{52}", "gsk_{w52}"),
    Rule("xai-key", "xai-", r"xai-[0-9A-Za-z]{80}", "xai-{w80}"),
    Rule("nvidia-key", "nvapi-", r"nvapi-[\w-]{64}", "nvapi-{u64}"),
    Rule("fireworks-key", "fw_", r"fw_[0-9A-Za-z]{22,24}", "fw_{w24}", is_secret=has_random_digits),
    Rule("langsmith-key", "lsv2_", r"lsv2_(?:pt|sk)_[\da-f]{32}_[\da-f]{10}", "lsv2_pt_{h32}_{h10}"),
    Rule("tavily-key", "tvly-", r"tvly-(?:dev-)?[0-9A-Za-z-]{32,60}", "tvly-{w32}"),
)

PAYMENTS = (
    Rule("stripe-key", "sk_ rk_", r"[rs]k_(?:test|live|prod)_[0-9A-Za-z]{10,99}", "sk_live_{w24}", "pk_live_{w24}"),
    Rule("stripe-webhook", "whsec_", r"whsec_[0-9A-Za-z+/=]{32,64}", "whsec_{w32}"),
    Rule("square-token", "sq0", r"sq0(?:atp|csp|idp|ftp)-[\w-]{22,60}", "sq0atp-{u22}", "sq0atp-{u10}"),
    Rule("square-token", "EAAA", r"EAAA[\w=+-]{22,60}(?![\w=+/-])", "EAAA{u60}", is_secret=has_random_digits),
    Rule(
        "paypal-token",
        "access_token$",
        r"access_token\$(?:production|sandbox)\$[\da-z]{16}\$[\da-f]{32}",
        "access_token$production${a16}${h32}",
    ),
    Rule(
        "braintree-key",
        "sandbox_ production_",
        r"(?:sandbox|production)_[\da-z]{8}_[\da-z]{16}",
        "production_{a8}_{a16}",
        is_secret=has_random_digits,
    ),
    Rule("flutterwave-key", "FLWPUBK FLWSECK", r"FLW(?:PUB|SEC)K(?:_TEST)?-[\da-z]{32}-X", "FLWSECK-{h32}-X"),
    Rule("flutterwave-key", "FLWSECK_TEST", r"FLWSECK_TEST[\da-z-]{12,40}", "FLWSECK_TEST{h12}"),
    Rule("easypost-key", "EZAK EZTK", r"EZ[AT]K[0-9A-Za-z]{54}(?![+/=])", "EZAK{w54}", "EZAK{w20}"),
    Rule("plaid-token", "access-", r"access-(?:sandbox|development|production)-{U}", "access-sandbox-{U}"),
    Rule("shippo-token", "shippo_", r"shippo_(?:live|test)_[\da-fA-F]{40}", "shippo_live_{h40}"),
    Rule("duffel-token", "duffel_", r"duffel_(?:test|live)_[\w=-]{43}", "duffel_live_{u43}"),
    Rule("shopify-token", "shpat_ shpca_ shppa_ shpss_", r"shp(?:at|ca|pa|ss)_[\da-fA-F]{32}", "shpat_{h32}"),
    Rule("razorpay-key", "rzp_", r"rzp_(?:live|test)_[0-9A-Za-z]{14}", "rzp_live_{w14}"),
    Rule("gocardless-token", "live_", r"live_[\w=-]{40}", "live_{u40}", is_secret=has_random_digits),
    Rule("lob-key", "live_ test_", r"(?:live|test)_(?:pub_)?[\da-f]{31,35}", "test_pub_{h31}"),
)

MESSAGING = (
    Rule(
        "slack-token",
        "xoxb-",
        r"xoxb-\d{8,14}-(?:\d{10,13}[0-9A-Za-z-]{0,200}|[0-9A-Za-z]{18,34})",
        "xoxb-{d12}-{d12}-{w24}",
        "xoxb-{d5}-{h7}",
    ),
    Rule(
        "slack-token",
        "xoxa- xoxp- xoxe-",
        r"xox[ape]-(?:\d-)?(?:\d{8,14}-){1,3}[0-9A-Za-z][0-9A-Za-z-]{17,47}",
        "xoxp-{d12}-{d12}-{d12}-{h32}",
    ),
    Rule("slack-token", "xoxo- xoxs-", r"xox[os]-(?:\d{1,200}-){2,3}[\da-fA-F]{1,200}", "xoxs-{d10}-{d10}-{d10}-{h10}"),
    Rule(
        "slack-token",
        "xoxe",
        r"xoxe(?:.xox[bp])?-\d-[0-9A-Za-z]{60,260}",
        "xoxe.xoxp-1-{w166}",
        "xoxe.xoxp-1-initial",
    ),
    Rule(
        "slack-token",
        "xoxa- xoxr-",
        r"xox[ar]-(?:\d-)?(?:\d{6,14}-){1,3}[\da-f]{10,64}",
        "xoxa-2-{d10}-{d12}-{h18}",
        "xoxa-2-{d5}-{h4}",
        anything,
    ),
    Rule("slack-token", "xoxa- xoxr-", r"xox[ar]-(?:\d-)?[0-9A-Za-z]{8,48}", "xoxa-2-{w24}", "xoxa-bot-token"),
    Rule(
        "slack-token",
        "xapp- XAPP-",
        r"(?i:xapp)-\d-[0-9A-Za-z]{2,200}-\d{1,200}-[\da-zA-Z]{1,200}",
        "xapp-1-{A11}-{d13}-{h64}",
    ),
    # A dot may be any character: links are made harmless in that way.
    Rule(
        "slack-webhook",
        "hooks",
        r"hooks.slack(?:-gov)?.com/(?:services|workflows|triggers)/([\w+/]{30,70})",
        "https://hooks.slack.com/services/T{A8}/B{A8}/{w24}",
        bounds=False,
    ),
    Rule(
        "discord-webhook",
        "/api/webhooks/",
        r"/api/webhooks/\d{17,20}/([\w-]{60,70})",
        "/api/webhooks/{d18}/{u68}",
        bounds=False,
    ),
    Rule(
        "teams-webhook",
        ".webhook.office.com",
        r".webhook.office.com/webhookb2/([\w@/-]{80,200})",
        "https://x.webhook.office.com/webhookb2/{U}@{U}/IncomingWebhook/{h32}/{U}",
        bounds=False,
    ),
    Rule(
        "telegram-token",
        "0:A 1:A 2:A 3:A 4:A 5:A 6:A 7:A 8:A 9:A",
        f"(?:{_BOT_NUMBER})" + r"\d:(A[\w-]{34})(?![\w-])",
        "{d9}:A{u34}",
        "v{d9}:A{u34}",
        bounds=False,
    ),
    Rule("twilio-key", "SK AC", r"(?:SK|AC)(?:[\da-fA-F]{32}|[\da-z]{32})", "SK{h32}", "SK{h20}", is_secret=anything),
    Rule("sendgrid-key", "SG.", r"SG\.[\w=-]{20,24}\.[\w=-]{39,50}", "SG.{u22}.{u43}", is_secret=has_random_digits),
    Rule("sendgrid-key", "SG.", r"SG\.(?:[\w=-]|\.(?!\.)){66}", "SG.{u66}", is_secret=has_random_digits),
    Rule("sendinblue-key", "xkeysib- xsmtpsib-", r"x(?:key|smtp)sib-[\da-f]{64}-[\da-zA-Z]{16}", "xkeysib-{h64}-{a16}"),
    Rule("mailchimp-key", "-us", r"[\da-z]{32}-us\d{1,2}", "{h32}-us18", "{h20}-us18", has_random_digits, back=32),
    Rule("mailgun-key", "key- pubkey-", r"(?:pub)?key-[\da-f]{32}", "key-{h32}"),
    Rule(
        "facebook-token",
        "0| 1| 2| 3| 4| 5| 6| 7| 8| 9| 0% 1% 2% 3% 4% 5% 6% 7% 8% 9%",
        r"(?<=\d{14})\d(?:\||%(?:7[Cc])?)([\w-]{27,40})(?![\w-])",
        "{d15}|{u27}",
        bounds=False,
    ),
    Rule("facebook-token", "EAA", r"EAA[A-Z][0-9A-Za-z]{80,400}", "EAAC{w120}"),
    Rule("twitter-token", "AAAAAAAAAAAAAAAAAAAAAA", r"A{22}[\w%]{80,100}", "AAAAAAAAAAAAAAAAAAAAAA{w90}"),
    Rule("intercom-token", "dG9rOg", r"dG9rOg[\w=+/-]{40,100}", "dG9rOg{w54}"),
)

TOOLS = (
    Rule(
        "age-key",
        "AGE-SECRET-KEY-1",
        r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}",
        "AGE-SECRET-KEY-1{Z58}",
    ),
    Rule(
        "1password-key",
        "A3-",
        r"A3-[0-9A-Z]{6}-(?:[0-9A-Z]{11}|[0-9A-Z]{6}-[0-9A-Z]{5})(?:-[0-9A-Z]{5}){3}",
        "A3-{A6}-{A11}-{A5}-{A5}-{A5}",
    ),
    Rule("1password-token", "ops_eyJ", r"ops_eyJ[\dA-Za-z+/_-]{200,3000}={0,3}", "ops_eyJ{w400}", "ops_eyJ{w20}"),
    Rule("adobe-secret", "p8e-", r"p8e-[\da-zA-Z]{32}", "p8e-{a32}"),
    Rule("airtable-token", "pat", r"pat[0-9A-Za-z]{14}\.[\da-f]{64}", "pat{w14}.{h64}"),
    Rule(
        "authress-key",
        "sc_ ext_ scauth_ authress_",
        r"(?:sc|ext|scauth|authress)_[\da-zA-Z]{5,30}\.[\da-zA-Z]{4,6}\.acc[_-][\w-]{10,32}\.[\w+/=-]{30,120}",
        "sc_{a12}.{a5}.acc_{a14}.{u60}",
    ),
    Rule("buildkite-token", "bkua_", r"bkua_[\da-f]{40}", "bkua_{h40}"),
    Rule("circleci-token", "CCIPAT_", r"CCIPAT_[0-9A-Za-z]{20,24}_[\da-f]{40}", "CCIPAT_{w22}_{h40}"),
    Rule("clickhouse-key", "4b1d", r"4b1d[\da-zA-Z]{38}", "4b1d{w38}"),
    Rule("contentful-token", "CFPAT-", r"CFPAT-[\w-]{43}", "CFPAT-{u43}"),
    Rule("defined-networking-token", "dnkey-", r"dnkey-[\w=-]{26}-[\w=-]{52}", "dnkey-{u26}-{u52}"),
    Rule(
        "doppler-token",
        "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.",
        r"dp\.(?:pt|ct|sa|scim|audit|st(?:\.[\w-]{2,35})?)\.[0-9A-Za-z]{40,44}",
        "dp.pt.{w43}",
    ),
    Rule("dropbox-token", "sl.", r"sl\.(?:u\.)?[\w=-]{130,1500}", "sl.{u135}", is_secret=has_random_digits),
    Rule("dynatrace-token", "dt0c01. dt0s0", r"dt0[cs]\d\d\.[0-9A-Za-z]{24}\.[0-9A-Za-z]{64}", "dt0c01.{A24}.{A64}"),
    Rule("endor-key", "endr+", r"endr\+[\w-]{16}", "endr+{u16}", is_secret=has_random_digits),
    Rule("figma-token", "figd_ figu_", r"fig[du]_[\w-]{40}", "figd_{u40}"),
    Rule("frameio-token", "fio-u-", r"fio-u-[\w=-]{64}", "fio-u-{u64}"),
    Rule("grafana-token", "glc_", r"glc_[0-9A-Za-z+/$]{32,400}={0,3}", "glc_{w80}"),
    Rule("grafana-token", "glsa_", r"glsa_[0-9A-Za-z]{32}_[\da-fA-F]{8}", "glsa_{w32}_{h8}"),
    # Base64 of {"k":" and, in another order of keys, {"n":"
    Rule("grafana-key", "eyJrIjoi", r"eyJrIjoi[0-9A-Za-z]{70,400}={0,3}", "eyJrIjoi{w80}"),
    Rule("harness-token", "pat. sat.", r"[ps]at\.[\w-]{22}\.[\dA-Za-z]{24}\.[\dA-Za-z]{20}", "pat.{w22}.{h24}.{w20}"),
    Rule("hubspot-token", "pat-na pat-eu", r"pat-(?:na|eu)\d-{U}", "pat-na1-{U}"),
    Rule("launchdarkly-key", "api- sdk- mob-", r"(?:api|sdk|mob)-{U}", "sdk-{U}"),
    Rule("linear-key", "lin_", r"lin_(?:api|oauth)_[0-9A-Za-z]{40,64}", "lin_api_{w40}"),
    Rule("mapbox-token", "pk. sk. tk.", r"[pst]k\.[0-9A-Za-z]{60}\.[0-9A-Za-z]{22}", "pk.{w60}.{w22}"),
    Rule("mapbox-token", "sk.eyJ tk.eyJ", r"[st]k\.eyJ[\w-]{20,200}\.[\w-]{22}", "sk.eyJ{u60}.{u22}"),
    Rule(
        "maxmind-key",
        "_mmk",
        r"(?<![0-9A-Za-z])[0-9A-Za-z]{6}_[0-9A-Za-z]{29}_mmk",
        "{w6}_{w29}_mmk",
        back=36,
        bounds=False,
    ),
    Rule("netlify-token", "nfp_", r"nfp_[0-9A-Za-z]{36}", "nfp_{w36}"),
    Rule(
        "new-relic-key",
        "NRAK- NRJS- NRII- NRAL- NRAA-",
        r"NR(?:AK|AL|AA)-[0-9A-Za-z]{27}|NRJS-[\da-f]{19}|NRII-[\w-]{32}",
        "NRAK-{A27}",
        "NRAK-{A10}",
    ),
    Rule("notion-token", "ntn_", r"ntn_[0-9A-Za-z]{46}", "ntn_{d11}{w35}", "ntn_{d11}abc", has_random_digits),
    Rule("notion-token", "secret_", r"secret_[0-9A-Za-z]{43}", "secret_{w43}", is_secret=has_random_digits),
    Rule("octopus-key", "API-", r"API-[0-9A-Z]{25,30}", "API-{A26}", is_secret=has_random_digits),
    Rule("pinecone-key", "pcsk_", r"pcsk_[0-9A-Za-z_]{60,80}", "pcsk_{w70}"),
    Rule("postman-key", "PMAK-", r"PMAK-[\da-fA-F]{24}-[\da-fA-F]{34}", "PMAK-{h24}-{h34}"),
    Rule("posthog-key", "phx_", r"phx_[0-9A-Za-z]{40,50}", "phx_{w43}"),
    Rule("prefect-key", "pnu_ pnb_", r"pn[ub]_[0-9A-Za-z]{36}", "pnu_{w36}"),
    Rule("readme-key", "rdme_", r"rdme_[\da-z]{70}", "rdme_{a70}"),
    Rule("sentry-token", "sntrys_", r"sntrys_eyJ[\dA-Za-z+/=]{40,400}_[\dA-Za-z+/=]{40,46}", "sntrys_eyJ{w120}_{w43}"),
    Rule("sentry-token", "sntryu_ sntrya_", r"sntry[ua]_[\da-f]{64}", "sntryu_{h64}"),
    Rule("settlemint-token", "sm_", r"sm_(?:pat|sat|aat)_[0-9A-Za-z]{16}", "sm_pat_{w16}"),
    Rule("snyk-token", "snyk_", r"snyk_(?:uat|sat)\.[\da-f]{8}\.[\w.-]{60,200}", "snyk_uat.{h8}.{u90}"),
    Rule("sonar-token", "squ_ sqp_ sqa_", r"sq[upa]_[0-9A-Za-z=_-]{40}", "squ_{h40}"),
    Rule("supabase-key", "sbp_", r"sbp_[\da-f]{40}", "sbp_{h40}"),
    Rule(
        "tailscale-key", "tskey-", r"tskey-[a-z]{3,12}-[0-9A-Za-z]{10,40}-[0-9A-Za-z]{20,60}", "tskey-auth-{w12}-{w32}"
    ),
    Rule("typeform-token", "tfp_", r"tfp_[\w.=-]{59}", "tfp_{u59}"),
    Rule("vercel-token", "vck_ vcp_", r"vc[kp]_[0-9A-Za-z]{24,60}", "vck_{w56}"),
    Rule(
        "zapier-webhook",
        "hooks.zapier.com",
        r"hooks.zapier.com/hooks/catch/([\w/]{10,40})",
        "hooks.zapier.com/hooks/catch/{d7}/{a7}",
        is_secret=anything,
        bounds=False,
    ),
)
