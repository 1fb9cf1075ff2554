"""Walks through a command as the shell would run it, and judges each simple command on the way."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from agentcli.safety.commands.judge.calls import Call, is_input, unwrap
from agentcli.safety.commands.judge.findings import Around, Findings
from agentcli.safety.commands.judge.forms import allow_forms, with_assignments
from agentcli.safety.commands.judge.handover import NETWORK_CLIENTS, REVERSE_SHELL
from agentcli.safety.commands.judge.scripts import input_of, printed, scripts_of
from agentcli.safety.commands.judge.shape import is_fork_bomb, makes_reverse_shell, program_of, traits_of
from agentcli.safety.commands.judge.shell_side_effects import (
    Redirected,
    judge_assignments,
    judge_redirects,
    may_set,
    name_problem,
    state_after,
)
from agentcli.safety.commands.programs.conditions import condition_problem
from agentcli.safety.commands.programs.effects import effects_of
from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.programs.read_only import problem_of
from agentcli.safety.commands.programs.wrappers import Layer
from agentcli.safety.commands.reader.expansion import HOLE, Field, Matches, Secret, State, Value
from agentcli.safety.commands.reader.parser import read_commands
from agentcli.safety.commands.reader.substitution import fields_of, scripts_in, word_problem
from agentcli.safety.commands.reader.syntax import (
    AndOr,
    Background,
    Case,
    Command,
    Condition,
    For,
    Function,
    Group,
    If,
    Loop,
    Node,
    NotJudged,
    Pipeline,
    Redirect,
    Script,
    Word,
)
from agentcli.safety.commands.records import Effects, Places, Segment, Verdict

_MOST_STEPS = 2_000  # simple commands, counted again in each round of a loop; takes 100 ms
_MOST_ROUNDS = 8  # values of a loop variable that are walked through one by one
_DEEPEST = 8  # scripts inside scripts, functions inside functions

_UNREADABLE = "what a shell or a program runs cannot be told"

Ends = tuple[State, State]  # the state after success, and after failure


class _TooMuch(Exception):
    """The command is too large to be walked through."""


class Walk(Findings):
    """One walk through a command or a part of one."""

    def __init__(self, places: Places, steps: int = 0) -> None:
        super().__init__()
        self.places = places
        self._script_files: set[str] = set()  # names without folder
        self._is_input_open = False  # `exec` redirected it
        self._steps = steps
        self._loops = 0  # enclosing loops
        self._seen: dict[int, Node] = {}
        self._traits: set[str] = set()

    @property
    def commands_seen(self) -> int:
        return len(self._seen)

    def run(self, script: Script) -> None:
        """Walk from the folder where the shell starts."""
        try:
            self._node(script, State((str(self.places.cwd),), str(self.places.home)), Around())
        except (_TooMuch, RecursionError):
            self.gave_up = True
            self.problem = self.unreadable = "there is too much of it to be judged"
        effects = [self.hidden, *(segment.effects for segment in self.segments)]
        if self._script_files & {path.rpartition("/")[2] for each in effects for path in each.writes}:
            self.unreadable = self.unreadable or "it runs a file that it writes"
        if makes_reverse_shell(self._traits):
            self.catastrophe = self.catastrophe or REVERSE_SHELL

    def _node(self, node: Node, state: State, around: Around) -> Ends:
        match node:
            case Command():
                return self._command(node, state, around)
            case Script():
                ends = (state, state)
                for item in node.items:
                    ends = self._node(item, ends[0].or_else(ends[1]), around)
                return ends
            case AndOr():
                return self._and_or(node, state, around)
            case Pipeline():
                return self._pipeline(node, state, around)
            case Background():
                problem = around.problem or ("a loop starts any number of processes" if self._loops else "")
                self._node(node.node, state, replace_struct(around, problem=problem))
                return state, state
            case Group():
                return self._group(node, state, around)
            case If():
                return self._if(node, state, around)
            case Loop():
                return self._repeated(Script((node.condition, node.body)), state, around)
            case For():
                return self._for(node, state, around)
            case Case():
                return self._case(node, state, around)
            case Function():
                return self._function(node, state, around)
            case Condition():
                return self._condition(node, state, around)
            case NotJudged():
                self._inside((*node.words,), state, around)
                self._note_unknown(node.text, "it uses a form of the shell that is not judged", around)
                for inside in node.inside:
                    self._node(inside, state.anywhere(), replace_struct(around, given=HOLE))
                return state.anywhere(), state.anywhere()

    # Compound commands

    def _and_or(self, node: AndOr, state: State, around: Around) -> Ends:
        success, failure = self._node(node.left, state, around)
        if node.operator == "&&":
            then, not_then = self._node(node.right, success, around)
            return then, not_then.or_else(failure)
        then, not_then = self._node(node.right, failure, around)
        return then.or_else(success), not_then

    def _pipeline(self, node: Pipeline, state: State, around: Around) -> Ends:
        given = around.given
        for part in node.parts:
            self._node(part, state, replace_struct(around, given=given))
            given = printed(part, given, state)
        names = [program_of(part) for part in node.parts]
        shells = [at for at, name in enumerate(names) if name == "shell"]
        if shells and any(name in NETWORK_CLIENTS for name in names[shells[0] + 1 :]):
            self.catastrophe = REVERSE_SHELL
        return state, state

    def _group(self, node: Group, state: State, around: Around) -> Ends:
        done = self._redirects(node.redirects, state, around)
        if done.connects:
            self._traits.add("connects")
        if done.problem or done.catastrophe:
            text = " ".join(f"{each.operator}{each.target.text}" for each in node.redirects)
            verdict: Verdict = "catastrophic" if done.catastrophe else "unknown"
            self._note(Segment(text, None, verdict, done.catastrophe or done.problem, done.effects, (), (text,)))
        given = input_of(Command("", (), (), node.redirects), around.given, state)
        ends = self._node(node.body, state, replace_struct(around, given=given))
        return (state, state) if node.is_subshell else ends

    def _if(self, node: If, state: State, around: Around) -> Ends:
        ends: list[State] = []
        for condition, body in node.branches:
            then, state = self._node(condition, state, around) if condition.items else (state, state)
            ends += self._node(body, then, around)
        for end in ends:
            state = state.or_else(end)
        return state, state

    def _case(self, node: Case, state: State, around: Around) -> Ends:
        self._inside((node.subject, *node.patterns), state, around)
        after = state
        for arm in node.arms:
            for end in self._node(arm, state, around):
                after = after.or_else(end)
        return after, after

    def _repeated(self, body: Script, state: State, around: Around) -> Ends:
        """Judge a body that runs any number of times: first find what it changes, then judge it with that unknown."""
        scratch = Walk(self.places, self._steps)
        success, failure = scratch._node(body, state, around)
        self._steps = scratch._steps  # both share one budget
        self._traits |= scratch._traits
        self.catastrophe = self.catastrophe or scratch.catastrophe
        for segment in scratch.segments:
            if segment.verdict == "catastrophic":
                self._note(segment)
        start = state.with_open(success.or_else(failure))
        self._loops += 1
        success, failure = self._node(body, start, around)
        self._loops -= 1
        after = start.or_else(success.or_else(failure))
        return after, after

    def _for(self, node: For, state: State, around: Around) -> Ends:
        fields = self._fields(node.words, state, around) if node.words is not None else [Field(HOLE)]
        values = [_value_of(field) for field in fields]
        if not may_set(f"{node.name}="):
            self._note_unknown(f"for {node.name}", "it sets a variable that matters to programs", around)
        if len(values) > _MOST_ROUNDS or None in values:
            secret = any(field.shows_secret for field in fields)
            return self._repeated(node.body, state.set(node.name, Secret() if secret else None), around)
        after = state
        for value in values:
            after, _ = self._repeated(node.body, after.set(node.name, value), around)
        return after, after

    def _function(self, node: Function, state: State, around: Around) -> Ends:
        if is_fork_bomb(node):
            self.catastrophe = "it is a fork bomb"
        self._node(node.body, state.anywhere(), around)
        after = replace(state, functions={**state.functions, node.name: node.body})
        return after, after

    def _condition(self, node: Condition, state: State, around: Around) -> Ends:
        fields = self._fields(node.words, state, around)
        check = ReadCheck(self.places, state)
        why = condition_problem(fields, check, is_double=True) or _words_problem(node.words, state) or around.problem
        effects = Effects(reads=tuple(check.reads))
        self._note(Segment(node.text, None, "unknown" if why else "harmless", why or "it only looks", effects))
        return state, state

    # Simple commands

    def _command(self, node: Command, state: State, around: Around) -> Ends:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _TooMuch
        self._seen[id(node)] = node
        done = self._redirects(node.redirects, state, around)
        self._inside(tuple(word for given in node.assignments for word in given.words), state, around)
        after, set_problem = judge_assignments(node, state)
        fields = self._fields(node.words, state, around)
        problem = done.problem or _words_problem(node.words, state)
        if fields:
            done = done.with_problem(problem or set_problem, is_only_assigned=not problem)
            return self._call(node, unwrap(fields, state), done, state, around)
        problem = problem or set_problem or around.problem
        if problem or done.catastrophe:
            verdict: Verdict = "catastrophic" if done.catastrophe else "unknown"
            forms = (" ".join(node.text.split()), *around.deny)
            self._note(Segment(node.text, None, verdict, done.catastrophe or problem, done.effects, (), forms))
        return after, after

    def _call(self, node: Command, call: Call, done: Redirected, state: State, around: Around) -> Ends:
        """Judge a command, or the script it gives to a shell."""
        self._traits |= traits_of(call, connects=done.connects)
        wrapped = call.problem or name_problem(call.sets)
        own = () if around.problem else (_as_written(node), *allow_forms(call.layers[:1] if wrapped else call.layers))
        allow = () if done.problem else (*around.allow, *own)
        known = self._as_printed(node, call, state, around)
        given = HOLE if self._is_input_open else input_of(node, around.given, state)
        self._is_input_open = self._is_input_open or (call.layers[0][0].text == "exec" and given != around.given)
        self._script_files |= {each.text.rpartition("/")[2] for each in known.script_files if not is_input(each)}
        if "/" in known.fields[0].text:
            self._script_files.add(known.name)
        shown = [text for text in call.doubtful_scripts if Field(text).is_known]
        hidden = [form for text in shown for form in self._search(text, is_shown=True)]
        others = [text for text in scripts_of(known, given) if text not in shown]
        hidden += [*known.forms, *(form for text in others for form in self._search(text))]
        if _words_problem(node.words, state) or "BASH_ENV" in node.text or "PROMPT_COMMAND" in node.text:
            self.unreadable = self.unreadable or _UNREADABLE
        deny = tuple(dict.fromkeys((" ".join(node.text.split()), *call.forms, *hidden, *around.deny)))
        worst = call.catastrophe or done.catastrophe
        problem = done.problem or wrapped or around.problem
        if call.script is not None and not worst:
            return self._script(node, call.script, state, Around(problem, allow, deny, around.depth + 1, given))
        if call.name in state.functions:
            problem, allow = problem or f"{call.name} is a function of the command's own", ()
            self._function_call(call, state, Around("", (), deny, around.depth + 1, given))
        check = ReadCheck(self.places, state)
        inner = problem_of(call.fields, check)
        effects = done.effects | (
            effects_of(call.fields, state) if inner or worst else Effects(reads=tuple(check.reads))
        )
        words = tuple(field.text for field in call.fields) if all(field.is_known for field in call.fields) else None
        if worst:
            segment = Segment(node.text, words, "catastrophic", worst, effects, (), deny)
        elif why := inner or problem:
            allow = allow or (
                with_assignments(node.assignments, call.layers[0])
                if done.is_only_assigned and not around.problem
                else ()
            )
            segment = Segment(node.text, words, "unknown", why, effects, allow, deny)
        else:
            segment = Segment(node.text, words, "harmless", "it only reads inside the workspace", effects, allow, deny)
        self._note(segment)
        return state_after(call, state)

    def _script(self, node: Command, layer: Layer, state: State, around: Around) -> Ends:
        """Judge the text that a shell is given, in that shell or in this one."""
        assert layer.script is not None
        if around.depth > _DEEPEST:
            raise _TooMuch
        reading = read_commands(layer.script)
        why = around.problem or reading.problem
        if why or not reading.script.items:
            verdict: Verdict = "unknown" if why else "harmless"
            allow = around.allow if not reading.problem else ()
            self._note(Segment(node.text, None, verdict, why or "it runs nothing", Effects(), allow, around.deny))
        if reading.problem and not reading.is_refused:
            self.unread.append(layer.script)
        inside = state if layer.is_same_shell else state.in_child(layer.parameters)
        ends = self._node(reading.script, inside, around)
        return ends if layer.is_same_shell else (state, state)

    def _as_printed(self, node: Command, call: Call, state: State, around: Around) -> Call:
        """The call with the output of more substitutions filled in, if it is known."""

        def output_of(script: Script) -> str | None:
            text = printed(script, around.given, state).rstrip("\n")
            return None if text == HOLE else text

        if all(field.is_known for field in call.layers[0]):
            return call
        fields = fields_of(node.words, state, output_of)
        if not fields:
            return call
        known = unwrap(fields, state)
        if known.script is not None and known.script.script and call.script is None:
            known.doubtful_scripts.append(known.script.script)
        return known

    def _function_call(self, call: Call, state: State, around: Around) -> None:
        if around.depth > _DEEPEST:
            raise _TooMuch
        inside = state.with_parameters(call.fields)
        body = state.functions[call.name]
        functions = {name: each for name, each in state.functions.items() if name != call.name}
        self._node(body, replace(inside, functions=functions), around)

    # Words

    def _fields(self, words: Sequence[Word], state: State, around: Around) -> list[Field]:
        self._inside(tuple(words), state, around)
        return fields_of(words, state)

    def _inside(self, words: tuple[Word, ...], state: State, around: Around) -> None:
        """Judge the scripts that are substituted in words."""
        for word in words:
            given = HOLE if ">(" in word.text else around.given
            for script in scripts_in(word):
                self._node(script, state, Around("", (), around.deny, around.depth, given))

    def _redirects(self, redirects: Sequence[Redirect], state: State, around: Around) -> Redirected:
        self._inside(tuple(redirect.target for redirect in redirects), state, around)
        return judge_redirects(redirects, state, ReadCheck(self.places, state))

    # Notes

    def _search(self, text: str, *, is_shown: bool = False) -> list[str]:
        """Look for a catastrophe in a text that may run. Returns the forms that a refusing rule may match in it.

        A catastrophe in a text that no wrapper shows becomes `hidden_catastrophe`.
        """
        if not text.strip(HOLE):
            self.unreadable = self.unreadable or (_UNREADABLE if text else "")
            return []
        part = Walk(self.places, self._steps)
        reading = read_commands(text)
        part.run(reading.script)
        self._steps = part._steps
        self.hidden = functools.reduce(Effects.__or__, (each.effects for each in part.segments), self.hidden)
        self._script_files |= part._script_files
        is_known = Field(text).is_known and not part.unread and (not reading.problem or reading.is_refused)
        self.unreadable = self.unreadable or part.unreadable or ("" if is_known else _UNREADABLE)
        if is_shown:
            for segment in part.segments:
                if segment.verdict == "catastrophic":
                    self._note(segment)
            self.catastrophe = self.catastrophe or part.catastrophe
        elif Field(text).is_known:
            found = [each.reason for each in part.segments if each.verdict == "catastrophic"]
            worst = [self.hidden_catastrophe, part.hidden_catastrophe, part.catastrophe, *found]
            self.hidden_catastrophe = next(filter(None, worst), "")
        return [form for segment in part.segments for form in segment.deny_forms]


def _words_problem(words: Sequence[Word], state: State) -> str:
    return next((why for word in words if (why := word_problem(word, state))), "")


def _as_written(node: Command) -> str:
    """The words with their quotes, as a person may have copied them into a rule."""
    return " ".join(word.text for word in node.words)


def _value_of(field: Field) -> Value:
    if not field.is_known or field.may_vanish:
        return None
    return Matches(field.text) if field.is_glob else field.text
