"""Lists the programs that only read, with the options that keep it so. options.py explains the rows.

From the manuals of GNU coreutils 9, grep 3, diffutils 3, ripgrep 15, fd 10, procps 4, util-linux 2.39 and their BSD
namesakes: an option is listed only if it writes, runs and sends nothing in any of them.
"""

from __future__ import annotations

_GREP = (
    "search tolerant -abcEFGhHiIlLnoPqrRsTuUvVwxyzZ -A: -B: -C: -D: -d: -e: -f@ -m: -# --binary-files: --color? "
    "--colour? --context: --after-context: --before-context: --count --directories: --exclude-dir: --exclude-from@ "
    "--exclude: --extended-regexp --file@ --files-with-matches --files-without-match --fixed-strings --ignore-case "
    "--include* --invert-match --label: --line-buffered --line-number --line-regexp --max-count: --no-filename "
    "--no-messages --null --null-data --only-matching --perl-regexp --quiet --recursive --regexp: --silent --text "
    "--with-filename --word-regexp --initial-tab --no-ignore-case --basic-regexp --byte-offset --help --version"
)
_SUM = "sizes tolerant -btz -a: -l: -c! --algorithm: --length: --check! --binary --tag --text --zero --help --version"

READERS = {
    "[": "facts",  # conditions.py judges its words
    "arch": "none",
    "base32": "content -d -w: --decode --wrap: --help",
    "base64": "content -dDi -w: --decode --ignore-garbage --wrap: --help",
    "basename": "text -az -s: --multiple --suffix: --zero --help",
    "cat": "lines tolerant -AbeEnstTuv --number --show-all --number-nonblank --squeeze-blank --show-ends --show-tabs",
    "bc": "none -lqs --mathlib --quiet",
    "cal": "text -13jmy",
    "cksum": _SUM,
    "cmp": "content -bls -n: -i: --bytes: --ignore-initial: --print-bytes --quiet --silent --verbose --help",
    "column": "content -tenxL -c: -s: -o: -N: -H: --table --separator: --output-separator: --columns: --help",
    "comm": "content -123z --check-order --nocheck-order --output-delimiter: --total --zero-terminated --help",
    "cut": "lines tolerant -b: -c: -d: -f: -nsz --bytes: --characters: --delimiter: --fields: --complement "
    "--only-delimited --output-delimiter: --zero-terminated",
    "df": "facts -aBhHiklPT --all --block-size: --human-readable --si --inodes --local --portability "
    "--print-type --total --type: --exclude-type: --output? --help",
    "diff": "content -abBcdeEHinNpPqrstTuvwyZ -C: -F: -I: -L: -S: -U: -W: -x: -X@ --brief --color? --context? "
    "--exclude-from@ --exclude: --expand-tabs --ignore-all-space --ignore-blank-lines --ignore-case "
    "--ignore-space-change --ignore-trailing-space --label: --left-column --minimal --new-file --no-dereference "
    "--recursive --report-identical-files --show-c-function --show-function-line: --side-by-side --speed-large-files "
    "--strip-trailing-cr --suppress-common-lines --text --unified? --width: --normal --ed --rcs --help --version",
    "date": "text -uR -I? -d: -r@ --date: --reference@ --iso-8601? --rfc-3339: --rfc-email --utc --universal --debug "
    "--help",
    "dirname": "text -z --zero --help",
    "du": "names tolerant -0abcDhHklmPsSx -B: -d: -t: --all --apparent-size --block-size: --bytes --count-links "
    "--exclude: --human-readable --inodes --max-depth: --null --one-file-system --separate-dirs --si --summarize "
    "--threshold: --time? --time-style: --total --files0-from! --help",
    "echo": "text tolerant",
    "egrep": _GREP,
    "expand": "content -i -t: --initial --tabs: --help",
    "expr": "text",
    "factor": "text",
    "false": "text tolerant",
    "fd": "search -agHiIpqsuv0F1 -d: -t: -e: -E: -S: -j: -c: --absolute-path --extension: --exclude: --hidden "
    "--no-ignore --no-ignore-vcs --ignore-case --case-sensitive --glob --regex --fixed-strings --full-path "
    "--max-depth: --min-depth: --exact-depth: --type: --size: --changed-within: --changed-before: --color: --print0 "
    "--max-results: --quiet --strip-cwd-prefix --threads: --unrestricted --help --version",
    "fgrep": _GREP,
    "file": "content -0bhiklLNnprsv -F: -P: -e: --brief --dereference --exclude: --extension --keep-going --mime "
    "--mime-type --mime-encoding --no-dereference --no-pad --print0 --separator: --raw --help --version",
    "fmt": "content -cstu -w: --crown-margin --prefix: --split-only --tagged-paragraph --uniform-spacing --width:",
    "fold": "content -bs -w: --bytes --spaces --width: --help",
    "free": "none -bghklmtvw -s: -c: --bytes --kibi --mebi --gibi --human --lohi --total --wide --si --seconds: "
    "--count:",
    "getconf": "text -a",
    "grep": _GREP,
    "groups": "text",
    "head": "lines tolerant -n: -c: -qvz -# --bytes: --lines: --quiet --silent --verbose --zero-terminated",
    "hexdump": "content -bcCdovx -e: -n: -s: --canonical --length: --skip: --no-squeezing --help",
    "hd": "content -v -n: -s:",
    "hostname": "none -adfiIsA --fqdn --short --long --domain --ip-address --all-ip-addresses --help --version",
    "id": "text -agGnruzZ --group --groups --name --real --user --zero --help",
    "iconv": "content -cls -f: -t: --from-code: --to-code: --list --silent --help",
    "jq": "search -acCeghjMnrRsSV --ascii-output --color-output --compact-output --exit-status --help --indent: "
    "--join-output --monochrome-output --null-input --raw-input --raw-output --seq --slurp --sort-keys --stream "
    "--tab --unbuffered --version",
    "join": "content -i -1: -2: -a: -e: -j: -o: -t: -v: --ignore-case --header --check-order --nocheck-order --help",
    "locale": "text -acmk --all-locales --charmaps --category-name --keyword-name",
    "logname": "none",
    "lsb_release": "none -acdirsv --all --codename --description --id --release --short",
    "lsblk": "none -abdefilmnOpSt -o: --all --bytes --fs --json --list --nodeps --noheadings --output: --paths",
    "lspci": "none -knv",
    "lsusb": "none -tv",
    "ls": "names tolerant -aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1 --all --almost-all --author --block-size: "
    "--classify? --color? --directory --dereference --escape --file-type --format: --full-time "
    "--group-directories-first "
    "--hide: --human-readable --hyperlink? --ignore: --indicator-style: --inode --literal --no-group --numeric-uid-gid "
    "--quote-name --quoting-style: --recursive --reverse --show-control-chars --si --size --sort: --time-style: "
    "--time: "
    "--width: --zero --context --help --version",
    "lscpu": "none -aBbcexyJ --json --parse? --extended? --help",
    "md5": "sizes tolerant -qrn -c!",
    "md5sum": _SUM,
    "b2sum": _SUM,
    "nl": "lines tolerant -p -b: -d: -f: -h: -i: -l: -n: -s: -v: -w: --body-numbering: --number-format: --help",
    "nm": "content @ -aABCDgnopPrSu --defined-only --demangle --dynamic --extern-only --numeric-sort --undefined-only",
    "nproc": "none --all --ignore: --help",
    "numfmt": "text -z -d: --debug --delimiter: --field: --format: --from: --from-unit: --grouping --header? "
    "--invalid: "
    "--padding: --round: --suffix: --to: --to-unit: --zero-terminated --help",
    "objdump": "content @ -adDfhprsStTwx -j: -M: --all-headers --demangle --disassemble --headers --section: --syms",
    "od": "content -abcdfilosxv -A: -j: -N: -S: -t: -w? --address-radix: --skip-bytes: --read-bytes: --strings? "
    "--format: --output-duplicates --width? --help",
    "paste": "lines tolerant -sz -d: --delimiters: --serial --zero-terminated",
    "pgrep": "text -acfilnovwx -d: -g: -G: -P: -s: -t: -u: -U: --count --full --list-name --list-full --newest "
    "--oldest",
    "pstree": "text -aAchlnpstTuU",
    "pwd": "text tolerant",
    "readlink": "facts -efmnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --help",
    "readelf": "content @ -adehlnrsSuVW -p: -x: --all --dynamic --headers --relocs --sections --segments --symbols "
    "--wide",
    "realpath": "facts -eLmPqsz --canonicalize-existing --canonicalize-missing --logical --physical --quiet "
    "--no-symlinks --strip --zero --relative-to@ --relative-base@ --help",
    "rev": "lines tolerant",
    "rg": "search -abcFHhiIlnNopPqsSuUvVwx.0 -A: -B: -C: -e: -f@ -g* -j: -m: -M: -r: -t: -T: -E: -d: "
    "--after-context: --before-context: --case-sensitive --color: --colors: --column --context: "
    "--context-separator: --count --count-matches --crlf --debug --encoding: --engine: --field-match-separator: "
    "--file@ "
    "--files --files-with-matches --files-without-match --fixed-strings --glob* --glob-case-insensitive --heading "
    "--hidden --iglob* --ignore-case --invert-match --json --line-buffered --line-number --line-regexp --max-columns: "
    "--max-columns-preview --max-count: --max-depth: --max-filesize: --multiline --multiline-dotall --no-config "
    "--no-filename --no-heading --no-ignore --no-ignore-vcs --no-line-number --no-messages --null --one-file-system "
    "--only-matching --passthru --path-separator: --pcre2 --pretty --quiet --regexp: --replace: --smart-case --sort: "
    "--sortr: --stats --text --threads: --trim --type: --type-list --type-not: --unrestricted --version --vimgrep "
    "--with-filename --word-regexp --help",
    "sed": "content -nErsuz -e: --debug --expression: --line-length: --null-data --posix --quiet --regexp-extended "
    "--sandbox --separate --silent --unbuffered --version --help",
    "seq": "text -w -f: -s: --equal-width --format: --separator: --help",
    "sha1sum": _SUM,
    "sha224sum": _SUM,
    "sha256sum": _SUM,
    "sha384sum": _SUM,
    "sha512sum": _SUM,
    "shasum": _SUM,
    "size": "content @ -ABdox -t --format: --totals",
    "shuf": "content -erz -i: -n: --echo --head-count: --input-range: --repeat --zero-terminated",
    "sleep": "text",
    "sort": "content -bcCdfghiMmnrRsuVz -k: -S: -t: --batch-size: --buffer-size: --check? --debug --dictionary-order "
    "--field-separator: --general-numeric-sort --human-numeric-sort --ignore-case --ignore-leading-blanks "
    "--ignore-nonprinting --key: --merge --month-sort --numeric-sort --parallel: --random-sort --reverse --sort: "
    "--stable --unique --version-sort --zero-terminated --help",
    "stat": "facts tolerant -fLtxnqrs -c: --dereference --file-system --format: --printf: --terse --help",
    "strings": "content @ -adfo -n: -t: -e: -s: -# --all --bytes: --print-file-name --radix: --encoding: --help",
    "sum": "sizes tolerant -rs --sysv",
    "sw_vers": "none -productName -productVersion -buildVersion",
    "tac": "lines tolerant -br -s: --before --regex --separator:",
    "tail": "lines tolerant -fFqrvz -b: -c: -n: -s: -# --bytes: --follow? --lines: --pid: --quiet --retry --silent "
    "--sleep-interval: --verbose --zero-terminated --max-unchanged-stats:",
    "tr": "text -cCdstu --complement --delete --squeeze-repeats --truncate-set1 --help",
    "tree": "names -aACdDfFghiJnNpqQrsStuUvx -I: -L: -P: -T: -H: --charset: --dirsfirst --du --filelimit: --gitignore "
    "--inodes --device --matchdirs --metafirst --noreport --prune --sort? --si --timefmt: --filesfirst --help "
    "--version",
    "true": "text tolerant",
    "tsort": "content",
    "tty": "none -s",
    "type": "text -afptP",
    "uname": "none -amnrsvpio --all --kernel-name --nodename --kernel-release --machine --operating-system --version",
    "ulimit": "none -acdefHilmnpqrsStuvx",
    "unexpand": "content -a -t: --all --first-only --tabs:",
    "uniq": "content most=1 -cdDuiz -f: -s: -w: --all-repeated? --check-chars: --count --group? --ignore-case "
    "--repeated --skip-chars: --skip-fields: --unique --zero-terminated --help",
    "uptime": "none -ps --pretty --since --help",
    "users": "none",
    "vmstat": "text -adfmnstw -S:",
    "w": "text -hsfio",
    "wc": "sizes tolerant -clLmw --bytes --chars --lines --max-line-length --words --files0-from!",
    "whereis": "text -bms",
    "which": "text tolerant -as --all",
    "who": "none -abdHlmpqrstTuw --all --boot --count --heading --users",
    "whoami": "none --help",
    "xxd": "content most=1 -abdeEiupC -c: -g: -l: -n: -o: -s:",
    "yes": "text",
    "hash": "none",
    "jobs": "none -lprs",
    "times": "none",
    ":": "text tolerant",
    "wait": "text -n",
    "exit": "text",
    "return": "text",
    "break": "text",
    "continue": "text",
    "shift": "text",
    "help": "text -dms",
    "umask": "none -pS",
}

# Programs that print their version before they read anything of the project, and the options for it. Not listed: those
# that first start what the project names (yarn, cargo, go and rustup choose a tool chain, pytest loads plugins) or ask
# the network (terraform looks for a newer one).
_SYSTEM = (
    "chgrp chmod chown cp csplit dd install ln mkdir mkfifo mktemp mv nice nohup pr rm rmdir shred split stdbuf tee "
    "timeout touch truncate unlink xargs kill pkill mount umount"
)
_OTHERS_WITH_VERSIONS = """
    awk bash cc clang clang++ cmake curl diff docker env find g++ gawk gcc gh git gpg helm jq less make ninja node
    nodejs npm openssl perl php pip pip3 pipx podman python python2 python3 ruby sed sh sqlite3 ssh sudo tar
    tmux uv vim wget zsh
"""
VERSIONS = {
    **dict.fromkeys(_SYSTEM.split(), ("--help", "--version")),
    **dict.fromkeys(_OTHERS_WITH_VERSIONS.split(), ("--version",)),
    "docker": ("--version", "-v"),
    "git": ("--version", "version"),
    "java": ("-version", "--version"),
    "javac": ("-version", "--version"),
    "kubectl": (),
    "node": ("--version", "-v"),
    "nodejs": ("--version", "-v"),
    "npm": ("--version", "-v"),
    "openssl": ("version",),
    "perl": ("--version", "-v"),
    "php": ("--version", "-v"),
    "python": ("--version", "-V", "-VV"),
    "python2": ("--version", "-V"),
    "python3": ("--version", "-V", "-VV"),
    "ruby": ("--version",),
    "ssh": ("-V",),
    "tar": ("--version",),
    "tmux": ("-V",),
    "uv": ("--version", "-V"),
}
