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
from agentcli.safety.commands.paths import ReadCheck, named_secrets, reason_to_ask, scratch_files, sensitive_files
from agentcli.safety.commands.reader.commands import read_commands
from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, CommandNode, Field, Pipeline, Script, State, name_of
from agentcli.safety.commands.reads import problem_of
from agentcli.safety.commands.records import CommandAnalysis, CommandVerdict, Doubts, Effects, Segment, WorkspaceView

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
_USES_HOME = re.compile(r"~|\$\{?HOME|\bcd\b")


def analyse(command: str, *, workspace: WorkspaceView) -> CommandAnalysis:
    """Return a command's effects and its verdict (allow, try, ask or block), judged by its text. Never raises."""
    too_long = "the command is too long to check" if len(command) > MAX_CHARS else ""
    command = f"{command[:200]}…" if too_long else command
    # Bash treats hidden characters like letters; people and other programs see nothing, a blank or a line end.
    hidden = min((char for char in set(command) if not _is_shown(char)), default="")  # `min`: a set has no fixed order
    text = "".join(char if _is_shown(char) else "\ufffd" for char in command) if hidden else command
    disguise = f"it contains an invisible or misleading character (U+{ord(hidden):04X})" if hidden else ""
    home_change = "it changes HOME and uses it" if _CHANGES_HOME.search(text) and _USES_HOME.search(text) else ""
    doubt = too_long or disguise or home_change
    scratch = scratch_files(text)  # the command creates them itself, so it may read them
    if doubt or "GIT_" in text:  # HOME, or a variable such as GIT_DIR, may lead git elsewhere
        workspace = structs.replace(workspace, git_setup=lambda folder: None)
    is_readable = workspace.is_readable
    walk = Walk(structs.replace(workspace, is_readable=lambda path: str(path) in scratch or is_readable(path)))
    state = State(folders=(str(workspace.cwd),), home=str(workspace.home), start=str(workspace.cwd))
    walk.unreadable = home_change  # `~/x` is another file then, so rules about paths cannot be checked
    if too_long:
        walk.note_unjudged(too_long)
    try:
        walk.run(text, state)
    except RecursionError:
        walk.note_unjudged("it is nested too deeply")
    return structs.replace(_combine_verdicts(walk, doubt, text), scratch=scratch)


def _combine_verdicts(walk: "Walk", doubt: str, text: str) -> CommandAnalysis:
    """Combine the verdicts of the segments: the worst one applies, with the first reason for it.

    `doubt` says why the text may mean something else than it shows.
    """
    too_many = f"it has more than {MAX_SEGMENTS} commands" if walk.command_count > MAX_SEGMENTS else ""
    problem = walk.runs_unseen or too_many
    # Every variable that the shell expands is a problem; without one, the text only quotes `$NAME`.
    shows_secret = problem and re.search(r"\$\{?[#!]?\w*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL)", text, re.ASCII)
    found: list[tuple[CommandVerdict, str]] = [
        ("allow", _ONLY_READS),
        *((segment.verdict, segment.reason) for segment in walk.segments),
        ("block" if walk.catastrophe else "allow", walk.catastrophe),
        ("ask" if doubt else "allow", doubt),
        ("try" if problem else "allow", problem),
        ("ask" if shows_secret else "allow", "it may show a variable that holds a secret"),
    ]
    worst, reason = max(found, key=lambda each: _RANKS[each[0]])
    must_ask = walk.must_ask
    # Bash would run nothing of a text with a syntax error, so a person may allow it in spite of a catastrophe in it.
    if worst == "block" and (syntax_error := read_commands(text).syntax_error):
        must_ask = f"a part of it would be refused: {reason}"
        worst, reason = "ask", syntax_error
    effects = reduce(Effects.__or__, (segment.effects for segment in walk.segments), Effects())
    if problem:  # more may run than the segments show; list at least the programs that are visible, for the person
        doubtful = (segment.text for segment in walk.segments if segment.verdict != "allow")
        programs = tuple(word[0] for text in doubtful if (word := re.match(r"[\w./-]+(?!\S)", text)))
        effects = effects | structs.replace(UNKNOWN_EFFECTS, runs=programs or UNKNOWN_EFFECTS.runs)
    return CommandAnalysis(
        segments=tuple(walk.segments),
        verdict=worst,
        reason=reason,
        effects=effects,
        problem=doubt or problem,
        doubts=Doubts(effects=walk.script_effects, must_ask=must_ask, unreadable=walk.unreadable),
        deletes_unseen=walk.deletes_unseen if problem else "",
    )


def _is_shown(char: str) -> bool:
    return char.isprintable() or char in "\t\n"


StatesAfter = tuple[State, State]  # the shell's state after success, and after failure


class WalkContext(Struct, frozen=True, kw_only=True):
    """The properties that a command takes from the shells and wrappers around it."""

    problem: str = ""  # why it can do more than its text says
    allow_forms: tuple[str, ...] = ()  # `allow_forms` of the shells around it: a rule that covers them covers it too
    deny_forms: tuple[str, ...] = ()  # `deny_forms` of those shells
    depth: int = 0  # the number of scripts around it
    stdin_text: str = ""  # the text of its standard input; "" if the whole command does not redirect that


def _allow_forms(
    node: CommandNode, call: calls.ProgramCall, context: WalkContext, variable_problem: str, wrapper_problem: str
) -> tuple[str, ...]:
    """Return the forms of a call that allow rules match, leaving redirections aside."""
    if variable_problem:  # a rule must name the variables; it cannot name a shell, or what is around the call, as well
        is_alone = call.shell is None and not context.problem
        return calls.allow_forms_with_assignments(node.assignments, call.layers[0]) if is_alone else ()
    if context.problem:
        return context.allow_forms  # only a rule for what is around the command covers it
    # If the wrappers are a problem, an allow rule must name them all: only the outermost layer gives forms.
    layers_in_rules = call.layers[:1] if wrapper_problem else call.layers
    return (*context.allow_forms, node.words_text, *calls.allow_forms(layers_in_rules))  # `words_text`: as written


class Walk:
    """One walk through a command, or through a script that it may run; `segments` are its simple commands."""

    def __init__(self, workspace: WorkspaceView) -> None:
        self.workspace = workspace
        self.segments: list[Segment] = []
        self.runs_unseen = ""  # why commands other than `segments` may run: it contains a `for` loop
        self.deletes_unseen = ""  # why it may delete paths that it does not name: `rm -r "$folder"`
        self.unreadable = ""  # why deny and ask rules cannot be checked against all of it: `sh -c "$text"`
        self.must_ask = ""  # why only a person may allow it: a part was not judged, or a script of it must never run
        self.catastrophe = ""  # why it must never run
        self.script_effects = Effects()  # the effects of scripts that it may run
        self.command_count = 0  # the number of commands judged so far, in all scripts
        self._script_files: set[str] = set()  # the files that are run as scripts; names without folders
        self._is_stdin_replaced = False  # True once `exec <file` has redirected the input of all later commands
        self._traits: set[str] = set()  # the parts of a reverse shell found so far (see `reverse_shell_traits`)

    def run(self, text: str, state: State) -> None:
        """Walk through a whole text, then look for dangers that only its commands together show."""
        self._walk_text(text, state, WalkContext())
        effects = reduce(Effects.__or__, (segment.effects for segment in self.segments), self.script_effects)
        if self._script_files & {path.rpartition("/")[2] for path in effects.writes}:
            self.unreadable = self.unreadable or "it runs a file that it writes"
        if catastrophes.makes_reverse_shell(self._traits):
            self.catastrophe = self.catastrophe or catastrophes.REVERSE_SHELL

    def _walk_text(self, text: str, state: State, context: WalkContext) -> State:
        """Judge the commands of a text, note what of it cannot be read, and return the state after it."""
        reading = read_commands(text)
        if not reading.is_complete:
            self.note_unjudged(reading.problem)
        if reading.problem:  # a loop, a function or a syntax error: its commands may not be all that runs
            self.runs_unseen = self.runs_unseen or reading.problem
            if reading.has_function and re.search(catastrophes.FORK_BOMB, text):
                self.catastrophe = "it is a fork bomb"
            stdin_text = context.stdin_text or UNKNOWN_TEXT  # a loop may feed its commands with any text
            context = structs.replace(context, stdin_text=stdin_text)
        loop_words = [state.expand(word) for word in reading.loop_words]
        if why := ReadCheck(self.workspace, state).outside_problem(loop_words):
            words = [(Field("for"), *loop_words)]  # the words of a `for` are judged like a program's arguments
            effects = Effects(reads=named_secrets(words, (), state), names=sensitive_files(words, state))
            self.segments.append(Segment(text="for …", verdict="ask", reason=why, effects=effects))
        return self._walk_commands(reading.commands, state, context)

    def note_unjudged(self, why: str) -> None:
        self.runs_unseen = self.runs_unseen or why
        self.unreadable = self.unreadable or why
        self.must_ask = self.must_ask or why

    def _walk_commands(self, script: Script, state: State, context: WalkContext) -> State:
        """Walk through pipelines, joined by `&&`, `||`, `;` and the like, and return the state after the last one."""
        operator_before = ""
        state_if_skipped = state  # after `a &&`, the state that a failure of `a` left; after `a ||`, a success of `a`
        for pipeline in script:
            success, failure = self._walk_pipeline(pipeline, state, context)
            if operator_before == "&&":
                failure = failure.or_else(state_if_skipped)  # `a && b` also fails if `b` is skipped
            elif operator_before == "||":
                success = success.or_else(state_if_skipped)
            operator_before = pipeline.operator_after
            if operator_before == "&&":
                state, state_if_skipped = success, failure
            elif operator_before == "||":
                state, state_if_skipped = failure, success
            else:
                state = success.or_else(failure)
        return state

    def _walk_pipeline(self, pipeline: Pipeline, state: State, context: WalkContext) -> StatesAfter:
        """Judge the commands of a pipeline; what one prints, if that is known, is the standard input of the next."""
        stdin_text, states_after, commands = context.stdin_text, (state, state), []
        for part in pipeline.parts:
            states_after = self._walk_command(part, state, structs.replace(context, stdin_text=stdin_text))
            commands.append([state.expand(word) for word in part.words])
            stdin_text = calls.printed_by(commands[-1], calls.stdin_text_of(part.redirects, stdin_text, state))
        if catastrophes.pipes_reverse_shell(commands):
            self.catastrophe = catastrophes.REVERSE_SHELL
        # A longer pipeline, or one in the background, runs in subshells, which cannot change the state of this shell.
        return states_after if len(commands) == 1 and pipeline.operator_after != "&" else (state, state)

    def _walk_command(self, node: CommandNode, state: State, context: WalkContext) -> StatesAfter:
        """Judge a command with its substitutions and redirections, or a subshell; return the states after it."""
        self.command_count += 1
        if self.command_count > _MAX_COMMANDS:
            self.note_unjudged("it has too many commands to check")
            return state, state
        for script in node.substitutions:  # judged separately: no allow rule for the shell around them covers them
            self._walk_commands(script, state, structs.replace(context, problem="", allow_forms=()))
        redirects = calls.judge_redirects(node.redirects, state, ReadCheck(self.workspace, state))
        self._traits |= {"connects"} if redirects.connects else set()
        if node.subshell is not None:
            stdin_text = calls.stdin_text_of(node.redirects, context.stdin_text, state)
            problem = context.problem or redirects.problem
            self._walk_commands(node.subshell, state, structs.replace(context, stdin_text=stdin_text, problem=problem))
        if node.words:
            return self._judge_call(node, redirects, state, context=context)
        # Without a program there are only redirections, assignments or a subshell. No allow rule covers their problem;
        # `_add_segment` decides if it leads to a question or to a dry run.
        if problem := redirects.problem or ("it sets a variable" if node.assignments else context.problem):
            deny = (" ".join(node.text.split()), *context.deny_forms)
            segment = Segment(text=node.text, reason=problem, effects=redirects.effects, deny_forms=deny)
            values = [state.expand(value).text for _, value in node.assignments]
            self._add_segment(segment, state, catastrophe=redirects.catastrophe, values=values)
        return state, state

    def _judge_call(
        self, node: CommandNode, redirects: calls.RedirectEffects, state: State, *, context: WalkContext
    ) -> StatesAfter:
        """Judge a call of a program with its redirections and variables, or the script that it gives to a shell."""
        call = calls.unwrap([state.expand(word) for word in node.words], state)
        stdin_text = calls.stdin_text_of(node.redirects, context.stdin_text, state)
        stdin_text = UNKNOWN_TEXT if self._is_stdin_replaced else stdin_text
        if name_of(call.layers[0]) == "exec" and stdin_text != context.stdin_text:
            self._is_stdin_replaced = True
        self._note_dangers(node, call, state)
        script_segments = self._walk_possible_scripts(node, call, state, stdin_text)  # without that of `call.shell`
        variables = [f"{name}={state.expand(value).text}" for name, value in node.assignments]
        wrapper_variables = [field.text for wrapper in call.wrappers for field in wrapper.assignments]  # `env A=1`
        variable_problem = calls.variable_problem(variables)
        wrapper_problem = call.problem or calls.variable_problem(wrapper_variables)
        allow_forms = _allow_forms(node, call, context, variable_problem, wrapper_problem)
        script_forms = [form for segment in script_segments for form in segment.deny_forms]
        deny_forms = (" ".join(node.text.split()), *call.deny_forms, *script_forms, *context.deny_forms)
        segment = Segment(  # without what the program itself does, which is added below
            text=node.text,
            reason=redirects.problem or variable_problem or wrapper_problem or context.problem,
            effects=redirects.effects,
            allow_forms=() if redirects.problem else allow_forms,  # no allow rule covers a redirection into a file
            deny_forms=tuple(dict.fromkeys(deny_forms)),
        )
        catastrophe = call.catastrophe or redirects.catastrophe
        if call.shell is not None and not catastrophe:  # `sh -c TEXT`: the commands in the text are judged instead
            return self._walk_script(segment, call, state, structs.replace(context, stdin_text=stdin_text))
        layers = [*call.layers, *call.possible_commands]
        values = [variable.partition("=")[2] for variable in (*variables, *wrapper_variables)]
        problem, effects = self._judge_program(
            node, call, state, layers=layers, values=values, is_catastrophe=bool(catastrophe)
        )
        words = tuple(field.text for field in call.fields) if all(field.is_known for field in call.fields) else None
        effects = segment.effects | effects
        segment = structs.replace(segment, words=words, reason=problem or segment.reason, effects=effects)
        # A script that leads to a question makes the command ask.
        ask_reason = next((each.reason for each in script_segments if each.verdict == "ask"), "")
        self._add_segment(segment, state, catastrophe=catastrophe, layers=layers, values=values, ask_reason=ask_reason)
        return calls.states_after(call, state)

    def _judge_program(
        self,
        node: CommandNode,
        call: calls.ProgramCall,
        state: State,
        *,
        layers: Sequence[Sequence[Field]],
        values: Sequence[str],
        is_catastrophe: bool,
    ) -> tuple[str, Effects]:
        """Return why the program of a call may do more than read, or "", and its effects without redirections."""
        check = ReadCheck(self.workspace, state)
        problem = problem_of(call.fields, check)
        if not problem and not is_catastrophe:  # all of the call only reads
            return "", Effects(reads=tuple(check.reads))
        effects = self._effects_of_program(node, call, state)
        if problem:
            effects |= Effects(reads=named_secrets(layers, values, state), names=sensitive_files(layers, state))
        return problem, effects

    def _effects_of_program(self, node: CommandNode, call: calls.ProgramCall, state: State) -> Effects:
        effects = effects_of(call.fields, state)
        # Other wrappers, and variables, may lead git elsewhere.
        is_plain = all(layer[0].text in ("git", "time", "timeout") for layer in call.layers) and not node.assignments
        return with_remotes(effects, call.fields, state, self.workspace) if is_plain and call.name == "git" else effects

    def _note_dangers(self, node: CommandNode, call: calls.ProgramCall, state: State) -> None:
        """Note what the call contributes to dangers of the whole command, and what of it cannot be judged."""
        runs_unknown = call.name == "eval" and bool(call.problem)
        self._traits |= catastrophes.reverse_shell_traits(call.fields, call.reads_script, runs_unknown)
        self._script_files |= {file.text.rpartition("/")[2] for file in call.script_files}
        self._script_files |= {call.name} if "/" in call.fields[0].text else set()  # `./x` may be a script, too
        if call.unjudged:
            self.note_unjudged(call.unjudged)
        if "BASH_ENV" in node.text or "PROMPT_COMMAND" in node.text:  # bash runs the files or commands in these
            self.unreadable = self.unreadable or _UNREADABLE
        reasons = (calls.deletes_unseen(fields, state) for fields in (call.fields, *call.possible_commands))
        self.deletes_unseen = self.deletes_unseen or next(filter(None, reasons), "")

    def _walk_possible_scripts(
        self, node: CommandNode, call: calls.ProgramCall, state: State, stdin_text: str
    ) -> list[Segment]:
        """Walk through the scripts that a command may run, from its words or its input, and return their segments."""
        shown = [shell.script or "" for each in call.candidates if (shell := each.shell) is not None]
        guesses = [*calls.scripts_of(call, node.redirects, stdin_text, state)]
        if call.hides_program or UNKNOWN_TEXT in guesses:  # a substitution may print the program or its script
            guesses += [calls.printed_by_script(script, state) for script in node.substitutions]
        found = [self._walk_possible_script(text, state, is_shown=True) for text in shown if text != UNKNOWN_TEXT]
        found += [self._walk_possible_script(text, state, is_shown=False) for text in guesses]
        return [segment for segments in found for segment in segments]

    def _walk_script(
        self, segment: Segment, call: calls.ProgramCall, state: State, context: WalkContext
    ) -> StatesAfter:
        """Walk through the text after `sh -c`.

        The shell's own `segment` is only added if it has a problem, or if the text has no commands.
        """
        if context.depth >= _MAX_DEPTH:
            self.note_unjudged("its scripts are nested too deeply")
            return state, state
        shell, count_before = call.wrappers[-1], len(self.segments)
        inside = structs.replace(context, problem=segment.reason, depth=context.depth + 1)
        inside = structs.replace(inside, allow_forms=segment.allow_forms, deny_forms=segment.deny_forms)
        after = self._walk_text(shell.script or "", state, inside)
        if segment.reason or count_before == len(self.segments):
            self._add_segment(segment, state, layers=call.layers[:-1])  # the last layer is the shell with its text
        return (after, after) if shell.is_same_shell else (state, state)  # `eval 'cd x'` changes the shell's folder

    def _add_segment(
        self,
        segment: Segment,
        state: State,
        *,
        catastrophe: str = "",
        layers: Sequence[tuple[Field, ...]] = (),
        values: Sequence[str] = (),
        ask_reason: str = "",
    ) -> None:
        """Decide the verdict of a segment and add it. Its `reason` says why it may do more than read.

        `catastrophe` says why it must never run, and `ask_reason` why a dry run of it is not enough. For `layers` and
        `values` see `reason_to_ask`, which finds further reasons.
        """
        if catastrophe:
            segment = structs.replace(segment, verdict="block", reason=catastrophe, allow_forms=())
        elif problem := segment.reason:
            check = ReadCheck(self.workspace, state)
            ask_reason = ask_reason or reason_to_ask(layers, values, segment.effects, check, problem=problem)
            segment = structs.replace(segment, verdict="ask" if ask_reason else "try", reason=ask_reason or problem)
        else:
            segment = structs.replace(segment, reason=_ONLY_READS)
        if segment not in self.segments[-_RECENT:]:
            self.segments.append(segment)

    def _walk_possible_script(self, text: str, state: State, *, is_shown: bool) -> list[Segment]:
        """Walk through a script that the command may run, note its dangers and effects here, and return its segments.

        `is_shown`: the command shows the script, as `sh -c SCRIPT` does, so a catastrophe in it blocks the command. In
        other scripts, which are guesses, it leads to a question; in a text with unknown parts, it is ignored, because
        it is not certain. `runs_unseen` is not copied from the script, because the command has a problem itself.
        """
        inner = Walk(self.workspace)
        if UNKNOWN_TEXT in text:
            self.unreadable = self.unreadable or _UNREADABLE
        if not text.strip(UNKNOWN_TEXT) or self.command_count > _MAX_COMMANDS:
            return []  # with too many commands, `_walk_command` has noted that
        inner.command_count = self.command_count
        inner.run(text, state)
        self.command_count = inner.command_count
        found_effects = (inner.script_effects, *(segment.effects for segment in inner.segments))
        self.script_effects = reduce(Effects.__or__, found_effects, self.script_effects)
        self._script_files |= inner._script_files
        self.unreadable = self.unreadable or inner.unreadable
        self.must_ask = self.must_ask or inner.must_ask
        reasons = (segment.reason for segment in inner.segments if segment.verdict == "block")
        catastrophe = "" if UNKNOWN_TEXT in text else inner.catastrophe or next(reasons, "")
        if is_shown:
            self.catastrophe = self.catastrophe or catastrophe
        elif catastrophe:
            self.must_ask = self.must_ask or f"a part of it would be refused: {catastrophe}"
        return inner.segments
