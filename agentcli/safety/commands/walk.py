"""Walks through a command as the shell would run it, judges each simple command, and combines the verdicts into one.

It is the second line of defence behind the sandbox: it recognizes intent, but does not confine anything.
"""

import re
from collections.abc import Sequence
from functools import reduce

from msgspec import Struct, structs

from agentcli.safety.commands import calls, catastrophes
from agentcli.safety.commands.effects import UNKNOWN_EFFECTS, effects_of
from agentcli.safety.commands.git_remotes import with_remotes
from agentcli.safety.commands.paths import ReadCheck, named_secrets, reason_to_ask, sensitive_files
from agentcli.safety.commands.reader.commands import read_commands
from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, CommandNode, Field, Pipeline, Script, State, name_of
from agentcli.safety.commands.reads import problem_of
from agentcli.safety.commands.records import CommandAnalysis, CommandVerdict, Doubts, Effects, Segment, WorkspaceView
from agentcli.safety.commands.wrappers import Wrapper

MAX_SEGMENTS = 50  # nobody reads more than this before approving
MAX_CHARS = 1_000_000
_MAX_DEPTH = 8  # scripts inside scripts
_MAX_COMMANDS = 20_000  # in all scripts together; judging that many takes two seconds
_RECENT = 50  # a segment equal to one of the last 50 is not listed again
_ONLY_READS = "it only reads inside the workspace"
_UNREADABLE = "agentcli can't predict what a shell or program in it runs"
_RANKS: dict[CommandVerdict, int] = {"allow": 0, "try": 1, "ask": 2, "block": 3}
_CHANGES_HOME = re.compile(  # an assignment to HOME, or a builtin that may set the variable it names
    r"\bHOME\+?=|\b(?:read|unset|export|declare|typeset|local|readonly|printf|mapfile|readarray|getopts|for|select)\b"
    r"[^\n;&|]*(?<![$\w{])HOME\b"
)


def analyse(command: str, *, workspace: WorkspaceView) -> CommandAnalysis:
    """Judge a command by its text. Never raises."""
    # Bash treats these characters like letters; people and other programs see nothing, a blank or a line end.
    odd = min((char for char in set(command) if not _is_shown(char)), default="")  # `min`: a set has no fixed order
    disguise = f"it contains an invisible or misleading character (U+{ord(odd):04X})" if odd else ""
    text = "".join(char if _is_shown(char) else "\ufffd" for char in command) if disguise else command
    if len(text) > MAX_CHARS:
        why = "the command is too long to check"
        segment = Segment(text=text[:200] + "…", verdict="ask", reason=why)
        doubts = Doubts(must_ask=why, unreadable=why)
        return CommandAnalysis(
            segments=(segment,), verdict="ask", reason=why, effects=UNKNOWN_EFFECTS, problem=why, doubts=doubts
        )
    scratch = _scratch_files(text)
    if "GIT_" in text:  # a variable such as GIT_DIR may lead git elsewhere
        workspace = structs.replace(workspace, git_setup=lambda folder: None)
    walk = Walk(
        structs.replace(workspace, is_readable=lambda path: str(path) in scratch or workspace.is_readable(path))
    )
    state = State(folders=(str(workspace.cwd),), home=str(workspace.home), start=str(workspace.cwd))
    changes_home = _CHANGES_HOME.search(text) is not None
    try:
        walk.run(text, structs.replace(state, home=None) if changes_home else state, WalkContext())
        if changes_home:  # first the home was unknown; but the command may use it before it sets another one
            walk.add_questions_in(text, state)
    except RecursionError:
        walk.runs_unseen = walk.unreadable = walk.unjudged = "it is nested too deeply"
    return structs.replace(_combine_verdicts(walk, disguise, text), scratch=scratch)


def _scratch_files(text: str) -> tuple[str, ...]:
    """Return the files in /tmp that a command creates and then names again: `make >/tmp/log; tail /tmp/log`.

    The sandbox's empty /tmp is enough for them. A file named before the command creates it may be one in the real /tmp.
    """
    found = []
    for creation in re.finditer(r"(?:>\s*|\s-o\s+|\btee\s+)(/tmp/\w[\w.-]*)(?![\w./*?\[{$-])", text):
        path = creation[1]
        again = re.compile(rf"(?<![^\s;&|(<>]){re.escape(path)}(?![^\s;&|)<>])")  # as a word of its own
        if path not in text[: creation.start(1)] and again.search(text, creation.end()):
            found.append(path)
    return tuple(found)


def _combine_verdicts(walk: "Walk", disguise: str, text: str) -> CommandAnalysis:
    """Combine the verdicts of the segments: the worst one applies, with the first reason that was found for it."""
    problem = walk.runs_unseen or (
        f"it has more than {MAX_SEGMENTS} commands" if walk.command_count > MAX_SEGMENTS else ""
    )
    shows_secret = problem and re.search(r"\$\{?[#!]?\w*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL)", text, re.ASCII)
    found: list[tuple[CommandVerdict, str]] = [
        ("allow", _ONLY_READS),
        *((segment.verdict, segment.reason) for segment in walk.segments),
        ("block" if walk.catastrophe else "allow", walk.catastrophe),
        ("ask" if disguise else "allow", disguise),
        ("try" if problem else "allow", problem),
        ("ask" if shows_secret else "allow", "it may show a variable that holds a secret"),
    ]
    worst, reason = max(found, key=lambda each: _RANKS[each[0]])
    effects = reduce(Effects.__or__, (segment.effects for segment in walk.segments), Effects())
    if problem:  # more may run than the segments show; list at least the programs that are visible, for the person
        doubtful = (segment.text for segment in walk.segments if segment.verdict != "allow")
        programs = tuple(word[0] for text in doubtful if (word := re.match(r"[\w./-]+(?!\S)", text)))
        effects = effects | structs.replace(UNKNOWN_EFFECTS, runs=programs or UNKNOWN_EFFECTS.runs)
    refused = walk.script_catastrophe and f"a part of it would be refused: {walk.script_catastrophe}"
    doubts = Doubts(effects=walk.script_effects, must_ask=refused or walk.unjudged, unreadable=walk.unreadable)
    return CommandAnalysis(
        segments=tuple(walk.segments), verdict=worst, reason=reason, effects=effects, problem=disguise or problem,
        doubts=doubts, deletes_unseen=walk.deletes_unseen if problem else "",
    )  # fmt: skip


def _is_shown(char: str) -> bool:
    return char.isprintable() or char in "\t\n"


StatesAfter = tuple[State, State]  # the shell's state after success, and after failure


class WalkContext(Struct, frozen=True, kw_only=True):
    """The properties that a command takes from the shells and wrappers around it."""

    problem: str = ""  # why it can do more than its text says
    allow_forms: tuple[str, ...] = ()  # `allow_forms` of the shells around it: a rule that covers them covers it too
    deny_forms: tuple[str, ...] = ()  # `deny_forms` of those shells
    depth: int = 0  # the number of scripts around it
    stdin_text: str = ""  # the text of its standard input; "" for the person's own, at the start of the whole command


class Walk:
    """One walk through a command, or through a script that it may run; `segments` are its simple commands."""

    def __init__(self, workspace: WorkspaceView) -> None:
        self.workspace = workspace
        self.segments: list[Segment] = []
        self.runs_unseen = ""  # why commands other than `segments` may run: it contains a `for` loop
        self.deletes_unseen = ""  # why it may delete paths that it does not name: `rm -r "$folder"`
        self.unreadable = ""  # why deny and ask rules cannot be checked against all of it: `sh -c "$text"`
        self.unjudged = ""  # why a part of it was not judged: it has too many commands
        self.catastrophe = ""  # why it must never run
        self.script_catastrophe = ""  # why a script that it may run must never run
        self.script_effects = Effects()  # the effects of scripts that it may run
        self.command_count = 0  # the number of commands judged so far, in all scripts
        self._script_files: set[str] = set()  # the files that are run as scripts; names without folders
        self._is_input_open = False  # True once `exec` has redirected the shell's input
        self._traits: set[str] = set()  # the parts of a reverse shell found so far (see `reverse_shell_traits`)

    def run(self, text: str, state: State, context: WalkContext) -> None:
        """Walk through a whole text, then look for dangers that only its commands together show."""
        self._walk_text(text, state, context)
        effects = reduce(Effects.__or__, (segment.effects for segment in self.segments), self.script_effects)
        if self._script_files & {path.rpartition("/")[2] for path in effects.writes}:
            self.unreadable = self.unreadable or "it runs a file that it writes"
        if catastrophes.makes_reverse_shell(self._traits):
            self.catastrophe = self.catastrophe or catastrophes.REVERSE_SHELL

    def add_questions_in(self, text: str, state: State) -> None:
        """Walk through the same text in another state, and add the segments that need a question in that state."""
        for segment in self._walk_possible_script(text, state, is_shown=False).segments:
            if segment not in self.segments and segment.verdict in ("ask", "block"):
                self.segments.append(structs.replace(segment, verdict="ask"))  # the state is only possible

    def _walk_text(self, text: str, state: State, context: WalkContext) -> State:
        reading = read_commands(text)
        if not reading.is_complete:  # a part was not even read
            self._note_unjudged(reading.problem)
        if reading.problem:  # a loop, a function or a syntax error: its commands may not be all that runs
            self.runs_unseen = self.runs_unseen or reading.problem
            if reading.has_function and re.search(catastrophes.FORK_BOMB, text):
                self.catastrophe = "it is a fork bomb"
            context = structs.replace(
                context, stdin_text=context.stdin_text or UNKNOWN_TEXT
            )  # a loop may feed them unknown text
        loop_words = [state.expand(word) for word in reading.loop_words]
        if why := ReadCheck(self.workspace, state).outside_problem(loop_words):
            words = [(Field("for"), *loop_words)]  # the words of a `for` are judged like a program's arguments
            effects = Effects(reads=named_secrets(words, (), state), names=sensitive_files(words, state))
            self.segments.append(Segment(text="for …", verdict="ask", reason=why, effects=effects))
        count_before, catastrophe_before = len(self.segments), self.catastrophe
        after = self._walk_commands(reading.commands, state, context)
        if reading.syntax_error:  # a syntax error: bash would run none of it, so a catastrophe only leads to a question
            self.script_catastrophe = self.script_catastrophe or self._find_catastrophe(count_before)
            self.segments[count_before:] = [
                structs.replace(each, verdict="ask", reason=reading.syntax_error) if each.verdict == "block" else each
                for each in self.segments[count_before:]
            ]
            self.catastrophe = catastrophe_before
        return after

    def _find_catastrophe(self, first: int = 0) -> str:
        """Return the reason why the command must never run, or "". Only segments from index `first` on are searched."""
        found = (segment.reason for segment in self.segments[first:] if segment.verdict == "block")
        return self.catastrophe or next(found, "")

    def _note_unjudged(self, why: str) -> None:
        self.runs_unseen = self.runs_unseen or why  # a part of the command will not be judged
        self.unreadable = self.unreadable or why
        self.unjudged = self.unjudged or why

    def _walk_commands(self, script: Script, state: State, context: WalkContext) -> State:
        operator = ""  # the operator before the pipeline
        skipped = state  # the state if the pipeline is skipped: after `&&`, the state that a failure left
        for pipeline in script:
            success, failure = self._walk_pipeline(pipeline, state, context)
            if operator == "&&":
                failure = failure.or_else(skipped)  # `a && b` also fails if `b` is skipped
            elif operator == "||":
                success = success.or_else(skipped)
            operator = pipeline.operator_after
            if operator == "&&":
                state, skipped = success, failure
            elif operator == "||":
                state, skipped = failure, success
            else:
                state = success.or_else(failure)
        return state

    def _walk_pipeline(self, node: Pipeline, state: State, context: WalkContext) -> StatesAfter:
        stdin_text, ends, pipeline = context.stdin_text, (state, state), []
        for part in node.parts:
            ends = self._walk_command(part, state, structs.replace(context, stdin_text=stdin_text))
            pipeline.append([state.expand(word) for word in part.words])
            stdin_text = calls.printed_by(pipeline[-1], calls.stdin_text_of(part.redirects, stdin_text, state))
        if catastrophes.pipes_reverse_shell(pipeline):
            self.catastrophe = catastrophes.REVERSE_SHELL
        # A longer pipeline, or one in the background, runs in subshells, which cannot change the state of this shell.
        return ends if len(node.parts) == 1 and node.operator_after != "&" else (state, state)

    def _walk_command(self, node: CommandNode, state: State, context: WalkContext) -> StatesAfter:
        self.command_count += 1
        if self.command_count > _MAX_COMMANDS:
            self._note_unjudged("it has too many commands to check")
            return state, state
        for (
            script
        ) in node.substitutions:  # substitutions run before the wrappers, so a rule for a wrapper does not cover them
            self._walk_commands(script, state, structs.replace(context, problem="", allow_forms=()))
        redirects = calls.judge_redirects(node.redirects, state, ReadCheck(self.workspace, state))
        if node.subshell is not None:
            stdin_text = calls.stdin_text_of(node.redirects, context.stdin_text, state)
            problem = context.problem or redirects.problem
            self._walk_commands(node.subshell, state, structs.replace(context, stdin_text=stdin_text, problem=problem))
        fields = [state.expand(word) for word in node.words]
        values = [(name, state.expand(value)) for name, value in node.assignments]
        variable_problem = calls.variable_problem(f"{name}={value.text}" for name, value in values)
        self._traits |= {"connects"} if redirects.connects else set()
        if fields:
            only_variables = bool(variable_problem) and not redirects.problem
            redirects = structs.replace(redirects, problem=redirects.problem or variable_problem)
            call = calls.unwrap(fields, state)
            return self._judge_call(node, call, redirects, state, context=context, only_variables=only_variables)
        # Without a program there are only redirections, assignments or a subshell, which no allow rule covers.
        # `_add_segment` decides if their problem leads to a question or to a dry run.
        if problem := redirects.problem or ("it sets a variable" if values else context.problem):
            deny = (" ".join(node.text.split()), *context.deny_forms)
            segment = Segment(text=node.text, reason=problem, effects=redirects.effects, deny_forms=deny)
            self._add_segment(segment, state, catastrophe=redirects.catastrophe, values=[value for _, value in values])
        return state, state

    def _judge_call(
        self, node: CommandNode, call: calls.ProgramCall, redirects: calls.RedirectEffects, state: State, *,
        context: WalkContext, only_variables: bool,
    ) -> StatesAfter:  # fmt: skip
        """Judge a command, or the script it gives to a shell. `only_variables`: those it sets are its only problem."""
        stdin_text = (
            UNKNOWN_TEXT if self._is_input_open else calls.stdin_text_of(node.redirects, context.stdin_text, state)
        )
        self._is_input_open = self._is_input_open or (
            name_of(call.layers[0]) == "exec" and stdin_text != context.stdin_text
        )
        self._note_dangers(node, call, state)
        set_by_wrappers = [field for wrapper in call.wrappers for field in wrapper.assignments]  # `env A=1`
        wrapper_problem = call.problem or calls.variable_problem(field.text for field in set_by_wrappers)
        # If the wrappers are a problem, an allow rule must name them all: only the outermost layer gives forms.
        layers_of_rules = call.layers[:1] if wrapper_problem else call.layers
        own_forms = () if context.problem else (node.words_text, *calls.allow_forms(layers_of_rules))
        allow_forms = () if redirects.problem else (*context.allow_forms, *own_forms)
        inner_walks = self._walk_possible_scripts(node, call, state, stdin_text)
        script_forms = [form for inner in inner_walks for segment in inner.segments for form in segment.deny_forms]
        own_text = " ".join(node.text.split())
        deny_forms = tuple(dict.fromkeys((own_text, *call.deny_forms, *script_forms, *context.deny_forms)))
        catastrophe = call.catastrophe or redirects.catastrophe
        problem = redirects.problem or wrapper_problem or context.problem
        if call.script is not None and not catastrophe:
            inside = WalkContext(
                problem=problem,
                allow_forms=allow_forms,
                deny_forms=deny_forms,
                depth=context.depth + 1,
                stdin_text=stdin_text,
            )
            return self._walk_script(node, call, call.script, state, context=inside)
        check = ReadCheck(self.workspace, state)
        own_problem = problem_of(call.fields, check)  # why the program itself may do more than read
        may_do_more = own_problem or catastrophe
        effects = redirects.effects
        own_effects = effects_of(call.fields, state) if may_do_more else Effects(reads=tuple(check.reads))
        # Other wrappers, and variables, may lead git elsewhere.
        is_plain = all(layer[0].text in ("git", "time", "timeout") for layer in call.layers) and not node.assignments
        if may_do_more and is_plain and call.name == "git":
            own_effects = with_remotes(own_effects, call.fields, state, self.workspace)
        effects |= own_effects
        words = tuple(field.text for field in call.fields) if all(field.is_known for field in call.fields) else None
        if (
            not allow_forms and only_variables and not context.problem
        ):  # rules may name variables: `NODE_ENV=test npm test`
            allow_forms = calls.allow_forms_with_assignments(node.assignments, call.layers[0])
        layers = [*call.layers, *call.possible_commands]
        values = [state.expand(value) for _, value in node.assignments]
        values += [Field(each.text.partition("=")[2]) for each in set_by_wrappers]
        if own_problem:
            effects |= Effects(reads=named_secrets(layers, values, state), names=sensitive_files(layers, state))
        # A script that leads to a question makes the command ask.
        grave = next((each.reason for inner in inner_walks for each in inner.segments if each.verdict == "ask"), "")
        reason = own_problem or problem
        segment = Segment(
            text=node.text, words=words, reason=reason, effects=effects, allow_forms=allow_forms, deny_forms=deny_forms
        )
        self._add_segment(segment, state, catastrophe=catastrophe, layers=layers, values=values, grave=grave)
        return calls.states_after(call, state)

    def _note_dangers(self, node: CommandNode, call: calls.ProgramCall, state: State) -> None:
        """Note what the call contributes to dangers of the whole command, and what of it cannot be judged."""
        evaluates = call.name == "eval" and bool(call.problem)  # it runs text that is not known
        self._traits |= catastrophes.reverse_shell_traits(
            call.fields, reads_script=call.reads_script, evaluates=evaluates
        )
        self._script_files |= {file.text.rpartition("/")[2] for file in call.script_files}
        self._script_files |= {call.name} if "/" in call.fields[0].text else set()  # `./x` may be a script, too
        if call.unjudged:
            self._note_unjudged(call.unjudged)
        if "BASH_ENV" in node.text or "PROMPT_COMMAND" in node.text:  # bash runs the files or commands in these
            self.unreadable = self.unreadable or _UNREADABLE
        reasons = (calls.deletes_unseen(fields, state) for fields in (call.fields, *call.possible_commands))
        self.deletes_unseen = self.deletes_unseen or next(filter(None, reasons), "")

    def _walk_possible_scripts(
        self, node: CommandNode, call: calls.ProgramCall, state: State, stdin_text: str
    ) -> list["Walk"]:
        """Walk through the scripts that a command may run: those among its words, and those on its standard input."""
        shells = (each.script for each in call.candidates if each.script is not None)
        walks = [
            self._walk_possible_script(shell.script or "", state, is_shown=True)
            for shell in shells
            if shell.script != UNKNOWN_TEXT
        ]
        texts = [*calls.scripts_of(call, stdin_text)]
        if call.hides_program or UNKNOWN_TEXT in texts:  # the output of a substitution may be the program or its script
            texts += [calls.printed_by_script(script, state) for script in node.substitutions]
        return walks + [self._walk_possible_script(text, state, is_shown=False) for text in texts]

    def _walk_script(
        self, node: CommandNode, call: calls.ProgramCall, shell: Wrapper, state: State, *, context: WalkContext
    ) -> StatesAfter:
        """Walk through the text of a shell, which becomes a segment itself if it has a problem or no commands."""
        if context.depth > _MAX_DEPTH:
            self._note_unjudged("its scripts are nested too deeply")
            return state, state
        count = len(self.segments)
        after = self._walk_text(shell.script or "", state, context)
        if context.problem or count == len(self.segments):
            segment = Segment(
                text=node.text, reason=context.problem, allow_forms=context.allow_forms, deny_forms=context.deny_forms
            )
            self._add_segment(segment, state, layers=call.layers[:-1])  # the last layer is the shell with its text
        return (after, after) if shell.is_same_shell else (state, state)  # `eval 'cd x'` changes the shell's folder

    def _add_segment(
        self, segment: Segment, state: State, *, catastrophe: str = "", layers: Sequence[tuple[Field, ...]] = (),
        values: Sequence[Field] = (), grave: str = "",
    ) -> None:  # fmt: skip
        """Decide the verdict of a segment and add it. Its `reason` says why it may do more than read.

        `catastrophe` says why it must never run, `grave` why it must ask; the others are those of `reason_to_ask`.
        """
        if catastrophe:
            segment = structs.replace(segment, verdict="block", reason=catastrophe, allow_forms=())
        elif why := segment.reason:
            grave = grave or reason_to_ask(layers, values, segment.effects, ReadCheck(self.workspace, state), why=why)
            segment = structs.replace(segment, verdict="ask" if grave else "try", reason=grave or why)
        else:
            segment = structs.replace(segment, reason=_ONLY_READS)
        if segment not in self.segments[-_RECENT:]:
            self.segments.append(segment)

    def _walk_possible_script(self, text: str, state: State, *, is_shown: bool) -> "Walk":
        """Walk through a script that the command may run, and take over what was found, apart from the segments.

        If it `is_shown`, as the script in `sh -c SCRIPT` is, a catastrophe in it refuses the command; otherwise the
        command must ask. The script's own `runs_unseen` is not taken over: the command around it has one itself.
        """
        inner = Walk(self.workspace)
        if UNKNOWN_TEXT in text:
            self.unreadable = self.unreadable or _UNREADABLE
        if not text.strip(UNKNOWN_TEXT) or self.command_count > _MAX_COMMANDS:
            return inner  # with too many commands, `_walk_command` has noted that
        inner.command_count = self.command_count
        inner.run(text, state, WalkContext())
        self.command_count = inner.command_count
        self.script_effects = reduce(
            Effects.__or__, (each.effects for each in inner.segments), self.script_effects | inner.script_effects
        )
        self._script_files |= inner._script_files
        self.unreadable = self.unreadable or inner.unreadable
        self.unjudged = self.unjudged or inner.unjudged
        catastrophe = (
            inner._find_catastrophe() if UNKNOWN_TEXT not in text else ""
        )  # a text with holes is `unreadable` anyway
        if is_shown:
            self.catastrophe = self.catastrophe or catastrophe
        self.script_catastrophe = (
            self.script_catastrophe or inner.script_catastrophe or ("" if is_shown else catastrophe)
        )
        return inner
