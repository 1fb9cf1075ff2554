"""Tokens of code hosts, package registries and clouds that say what they are by how they begin.

The formats are the providers' own, as their documentation and their tokens have them. Lengths are exact where a
provider fixes them: that keeps names in source code out. Checksums that are public (the last six characters of
GitHub's and npm's tokens) are not asked for: one with a typing mistake is still nobody's business.
"""

from __future__ import annotations

from agentcli.safety.secrets.rule import Rule, anything, has_random_digits, is_no_name


def is_access_key(value: str) -> bool:
    """Amazon's manuals write AKIAIOSFODNN7EXAMPLE."""
    return not value.endswith(("EXAMPLE", "XXXXXXXX"))


CODE_HOSTS = (
    Rule("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[0-9A-Za-z]{36}", "ghp_{w36}", "ghp_{w20}"),
    Rule("github-token", "github_pat_", r"github_pat_\w{82}", "github_pat_{w22}_{w59}", "github_pat_{w22}"),
    Rule("gitlab-token", "glpat-", r"glpat-[\w-]{20}(?![\w-])", "glpat-{u20}", "glpat-{u12}"),
    # A payload, a dot, and in base 36 its length and a checksum.
    Rule("gitlab-token", "glpat- gldt- glft- glrt-", r"gl\w+-[\w-]{20,300}\.[\da-z.]{9,12}", "glpat-{u27}.{a9}"),
    Rule(
        "gitlab-token", "gldt- glft- glrt- glsoat- glffct-", r"gl\w+-[\w-]{20,50}(?![\w-])", "gldt-{u20}", "gldt-{u51}"
    ),
    Rule("gitlab-token", "glcbt-", r"glcbt-(?:[\da-zA-Z]{1,5}_)?[\w-]{20}(?![\w-])", "glcbt-{h2}_{u20}", "glcbt-{u12}"),
    Rule("gitlab-token", "glimt-", r"glimt-[\w-]{25}(?![\w-])", "glimt-{u25}", "glimt-{u22}"),
    Rule("gitlab-token", "glptt-", r"glptt-[\w-]{40}(?![\w-])", "glptt-{h40}", "glptt-{h20}"),
    Rule("gitlab-token", "glagent-", r"glagent-[\w-]{50,1024}(?![\w-])", "glagent-{u50}", "glagent-{u30}"),
    Rule("gitlab-token", "gloas-", r"gloas-[\w-]{64}(?![\w-])", "gloas-{h64}", "gloas-{h39}"),
    Rule("gitlab-token", "GR1348941", r"GR1348941[\w-]{20,50}(?![\w-])", "GR1348941{u20}", "GR1348941{u51}"),
    Rule("gitlab-session", "_gitlab_session=", r"_gitlab_session=([\da-z]{32})", "_gitlab_session={a32}", bounds=False),
    Rule("bitbucket-token", "ATBB", r"ATBB[0-9A-Za-z]{24,36}", "ATBB{w32}"),
    Rule("atlassian-token", "ATATT3 ATCTT3", r"AT[AC]TT3[\w=-]{150,250}", "ATATT3{u186}", "ATATT3{u40}"),
    Rule("sourcegraph-token", "sgp_", r"sgp_(?:(?:[\da-fA-F]{16}|local)_)?[\da-fA-F]{40}", "sgp_{h40}", "sgp_{h30}"),
    Rule("infracost-key", "ico-", r"(?<!\.)ico-[\da-zA-Z]{32}", "ico-{w32}", is_secret=has_random_digits),
    Rule("42-secret", "s-s4t2", r"s-s4t2(?:ud|af)-[\da-f]{64}", "s-s4t2ud-{h64}"),
)

REGISTRIES = (
    Rule("npm-token", "npm_", r"npm_[0-9A-Za-z]{36}", "npm_{w36}", "npm_{w20}"),
    Rule(
        "npm-token",
        ":_authToken",
        r":_authToken[ \"]{0,3}=[ \"]{0,3}([\w./+=-]{20,400})",
        "//r/:_authToken={w36}",
        is_secret=has_random_digits,
        bounds=False,
    ),
    Rule(
        "pypi-token",
        "pypi-Ag",
        r"pypi-Ag(?:EIcHlwaS5vcmc|ENdGVzdC5weXBpLm9yZw)[\w-]{70,1000}",
        "pypi-AgEIcHlwaS5vcmc{u90}",
        "pypi-AgEIcHlwaS5vcmc{u40}",
    ),
    Rule("rubygems-token", "rubygems_", r"rubygems_[\da-f]{48}", "rubygems_{h48}"),
    Rule("clojars-token", "CLOJARS_", r"CLOJARS_[\da-zA-Z]{60}", "CLOJARS_{h60}"),
    Rule("nuget-key", "oy2", r"oy2[\da-z]{43}", "oy2{a43}", is_secret=has_random_digits),
    Rule("crates-token", "cio", r"cio[0-9A-Za-z]{32}", "cio{w32}", is_secret=has_random_digits),
    Rule("docker-token", "dckr_", r"dckr_[po]at_[\w-]{27,32}", "dckr_pat_{u27}"),
    Rule(
        "jfrog-key",
        "AKC",
        r"(?<!/)AKC[0-9A-Za-z]{10,80}(?![+/=])",
        "AKC{w70}",
        "AKCessibilityNames",
        is_secret=is_no_name,
    ),
    Rule(
        "jfrog-key",
        "AP0 AP1 AP2 AP3 AP4 AP5 AP6 AP7 AP8 AP9 APA APB APC APD APE APF",
        r"(?<!/)AP[\dA-F][0-9A-Za-z]{8,80}(?![+/=])",
        "AP6{w60}",
        "APAcheLicenses",
        is_secret=is_no_name,
    ),
    Rule("jfrog-token", "cmVmd", r"cmVmd[\dA-Za-z]{59}", "cmVmd{w59}", "cmVmd{w20}"),
)

CLOUDS = (
    Rule(
        "aws-access-key",
        "AKIA ASIA ABIA ACCA A3T",
        r"(?:A3T[0-9A-Z]|AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}",
        "AKIA{A16}",
        "AKIAIOSFODNN7EXAMPLE",
        is_secret=is_access_key,
    ),
    Rule("aws-bedrock-key", "ABSK", r"ABSK[\dA-Za-z+/]{109,269}={0,2}", "ABSK{w120}", "ABSK{w50}"),
    Rule(
        "aws-bedrock-key",
        "bedrock-api-key-",
        r"bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t[\w+/=-]{0,2000}",
        "bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t{w40}",
        "bedrock-api-key-{w40}",
        is_secret=anything,
    ),
    Rule(
        "azure-secret",
        "Q~",
        r"(?<![\w.~-])[\w.~]{3}\dQ~[\w.~-]{31,34}(?![\w~-])",
        " {w3}8Q~{w34}",
        " {w3}8Q~{w10}",
        back=4,
        bounds=False,
    ),
    Rule(
        "azure-storage-key",
        "AccountKey accountKey accountkey ACCOUNTKEY",
        r"(?i:AccountKey)[\"']?[ ]{0,2}[=:][ ]{0,2}[\"']?([\dA-Za-z+/]{86}==)",
        "AccountKey={w86}==",
        bounds=False,
    ),
    Rule(
        "azure-shared-key",
        "SharedAccessKey= sharedaccesskey= SHAREDACCESSKEY=",
        r"(?i:SharedAccessKey)=([\dA-Za-z+/]{43}=)",
        "SharedAccessKey={w43}=",
        bounds=False,
    ),
    Rule(
        "azure-signature",
        "&sig= ?sig=",
        r"[&?]sig=([\dA-Za-z+/%]{40,80}(?:%3[dD]|=))",
        "&sig={w43}%3D",
        "&sig={w10}%3D",
        bounds=False,
    ),
    Rule("google-api-key", "AIza", r"AIza[\w-]{35}(?![\w-])", "AIza{u35}", "AIza{u20}"),
    Rule("google-token", "ya29.", r"ya29\.[\w-]{20,1000}", "ya29.{u60}"),
    Rule("google-secret", "GOCSPX-", r"GOCSPX-[\w-]{28}", "GOCSPX-{u28}"),
    Rule("google-token", "1//0", r"1//0[\w-]{40,250}", "1//0{u60}"),
    Rule("alibaba-key", "LTAI", r"LTAI[0-9A-Za-z]{12,20}", "LTAI{w20}", is_secret=has_random_digits),
    Rule("tencent-key", "AKID", r"AKID[0-9A-Za-z]{32}", "AKID{w32}", is_secret=has_random_digits),
    Rule("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[\da-f]{64}", "dop_v1_{h64}"),
    Rule("heroku-key", "HRKU-", r"HRKU-[\w-]{30,64}", "HRKU-AA{u58}"),
    Rule("databricks-token", "dapi", r"dapi[\da-f]{32}(?:-\d)?", "dapi{h32}"),
    Rule("planetscale-token", "pscale_", r"pscale_(?:tkn|oauth|pw)_[\w=.-]{32,64}", "pscale_tkn_{u43}", "pscale_tkn_"),
    Rule("pulumi-token", "pul-", r"pul-[\da-f]{40}", "pul-{h40}"),
    Rule("vault-token", "hvs. hvb. hvr.", r"hv[sbr]\.[\w-]{90,300}", "hvs.{u96}", "hvs.{u20}"),
    Rule(
        "vault-token",
        "hvs. s.",
        r"(?:hvs|s)\.[\dA-Za-z]{24}",
        "s.{w24}",
        "s.AcceptanceTimeoutSeconds",
        has_random_digits,
    ),
    Rule("terraform-token", ".atlasv1.", r"[\dA-Za-z]{14}\.atlasv1\.[\w=-]{60,70}", "{w14}.atlasv1.{u67}", back=14),
    Rule("cloudflare-origin-key", "v1.0-", r"v1\.0-[\da-f]{24}-[\da-f]{146}", "v1.0-{h24}-{h146}"),
    Rule("flyio-token", "fo1_", r"fo1_[\w-]{43}", "fo1_{u43}"),
    Rule("flyio-token", "fm1a fm1r fm2_", r"fm(?:1[ar]|2)_[\dA-Za-z+/]{100,2000}={0,3}", "fm2_{w120}"),
    Rule("scalingo-token", "tk-us-", r"tk-us-[\w-]{48}", "tk-us-{u48}"),
    Rule("openshift-token", "sha256~", r"sha256~[\w-]{43}", "sha256~{u43}", "sha256~{u10}"),
    Rule("yandex-key", "AQVN", r"AQVN[\w-]{35,38}", "AQVN{u36}"),
    Rule("yandex-token", "t1.", r"t1\.[A-Z0-9a-z_-]{1,400}={0,2}\.[\w-]{86}={0,2}", "t1.{u60}.{u86}"),
    Rule("yandex-secret", "YC", r"YC[\w-]{38}", "YCAJ{u36}"),
    Rule(
        "kubernetes-bootstrap",
        "bootstrap-token-",
        r"bootstrap-token-[\da-z]{6}\.[\da-z]{16}",
        "bootstrap-token-{a6}.{a16}",
    ),
)
