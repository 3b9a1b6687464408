"""Chat templates in the formats of model families, and a tokenizer with the control tokens of each.

The templates are written for these tests: what they produce has the format of the family, and they refuse, trim and
rewrite what the family's own templates do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from agentrl.chat.template import Template
from agentrl.chat.tokenizer_training import build_tokenizer

TEXTS = [f"What do {n} pears cost? The answer is {n * 3} coins in the shop." for n in range(30)]


@dataclass(frozen=True)
class Family:
    """One family of models."""

    parser: str
    template: str
    special: tuple[str, ...]
    """Control tokens; the first one begins a text, and the last ones end turns."""
    stops: tuple[str, ...]
    begin: str = ""
    added: tuple[str, ...] = ()
    """Tokens that text may become."""
    variables: dict[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        """The files of its tokenizer."""
        directory.mkdir(parents=True, exist_ok=True)
        built = build_tokenizer(TEXTS)
        built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in self.special])
        built.add_tokens([AddedToken(token, special=False, normalized=False) for token in self.added])
        built.save(str(directory / "tokenizer.json"))
        (directory / "chat_template.jinja").write_text(self.template)
        described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.stops[0]}
        described |= {"bos_token": self.begin} if self.begin else {}
        (directory / "tokenizer_config.json").write_text(json.dumps(described))
        ends = [built.token_to_id(token) for token in self.stops]
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        return directory

    def read(self, directory: Path, **variables: Any) -> Template:
        return Template.of(self.write(directory), {**self.variables, **variables})


_LLAMA = """{{- bos_token }}
{%- macro begin(role) %}{{- "<|start_header_id|>" + role + "<|end_header_id|>\\n\\n" }}{%- endmacro %}
{%- set text = "" %}
{%- if messages[0].role == "system" %}
    {%- set text = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- begin("system") }}
{%- if tools %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: " + strftime_now("%d %b %Y") + "\\n\\n" }}
{{- text + "<|eot_id|>" }}
{%- if tools %}
    {%- set query = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
    {{- begin("user") }}
    {{- "Answer with a JSON for a function call, {\\"name\\": function, \\"parameters\\": arguments}.\\n\\n" }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) + "\\n\\n" }}{%- endfor %}
    {{- query + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- begin("ipython") }}
        {{- message.content | tojson + "<|eot_id|>" }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception("One call at once!") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- begin("assistant") }}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + "}<|eot_id|>" }}
    {%- else %}
        {{- begin(message.role) }}
        {{- message.content | trim + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- begin("assistant") }}{%- endif %}
"""

_MISTRAL = """{{- bos_token }}
{%- if messages[0].role == "system" %}
    {%- set system = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- set last = (messages | selectattr("role", "equalto", "user") | list)[-1] %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {%- if tools and message == last %}
            {{- "[AVAILABLE_TOOLS] " + tools | tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " }}
        {%- if system is defined and message == last %}{{- system + "\\n\\n" }}{%- endif %}
        {{- message.content + "[/INST]" }}
    {%- elif message.tool_calls %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception("An id has nine characters!") }}{%- endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
            {{- ', "id": "' + call.id + '"}' + ("" if loop.last else ", ") }}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- elif message.role == "assistant" %}
        {{- " " + message.content | trim + eos_token }}
    {%- elif message.role == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' }}
        {{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Roles are user, assistant and tool!") }}
    {%- endif %}
{%- endfor %}
"""

_CHATML_TOOLS = """{%- macro schemas(text) %}
    {{- text + ("\\n\\n" if text else "") + "# Tools\\n\\nFunctions are within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" + tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nWrite each call within <tool_call></tool_call>." }}
{%- endmacro %}
{%- macro results(message, before, after) %}
    {%- if not before or before.role != "tool" %}{{- "<|im_start|>user" }}{%- endif %}
    {{- "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" }}
    {%- if not after or after.role != "tool" %}{{- "<|im_end|>\\n" }}{%- endif %}
{%- endmacro %}
{%- macro calls(message, text) %}
    {%- for call in message.tool_calls or [] %}
        {{- ("\\n" if text or not loop.first else "") + '<tool_call>\\n{"name": "' + call.function.name }}
        {{- '", "arguments": ' + call.function.arguments | tojson + "}\\n</tool_call>" }}
    {%- endfor %}
{%- endmacro %}
"""

_QWEN25 = (
    _CHATML_TOOLS
    + """{%- set text = messages[0].content if messages[0].role == "system" else "You are a helpful assistant." %}
{{- "<|im_start|>system\\n" + (schemas(text) if tools else text) + "<|im_end|>\\n" }}
{%- for message in messages %}
    {%- if message.role == "tool" %}{{- results(message, loop.previtem, loop.nextitem) }}
    {%- elif message.role != "system" %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content }}
        {{- calls(message, message.content) + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}
"""
)

_QWEN3 = (
    _CHATML_TOOLS
    + """{%- set text = messages[0].content if messages[0].role == "system" else "" %}
{%- if text or tools %}
    {{- "<|im_start|>system\\n" + (schemas(text) if tools else text) + "<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(query=-1) %}
{%- for message in messages %}
    {%- if message.role == "user" and not message.content.startswith("<tool_response>") %}
        {%- set ns.query = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "tool" %}{{- results(message, loop.previtem, loop.nextitem) }}
    {%- elif message.role == "assistant" %}
        {%- set thought, said = "", message.content %}
        {%- if "</think>" in said %}
            {%- set thought = said.split("</think>")[0].split("<think>")[-1].strip("\\n") %}
            {%- set said = said.split("</think>")[-1].lstrip("\\n") %}
        {%- endif %}
        {{- "<|im_start|>assistant\\n" }}
        {%- if loop.index0 > ns.query and (loop.last or thought) %}
            {{- "<think>\\n" + thought.strip("\\n") + "\\n</think>\\n\\n" }}
        {%- endif %}
        {{- said + calls(message, said) + "<|im_end|>\\n" }}
    {%- elif message.role != "system" %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- "<think>\\n\\n</think>\\n\\n" }}{%- endif %}
{%- endif %}
"""
)

_GEMMA = """{{- bos_token }}
{%- set system = "" %}
{%- if messages[0].role == "system" %}
    {%- set system = messages[0].content + "\\n\\n" %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("Roles must alternate user/assistant") }}
    {%- endif %}
    {{- "<start_of_turn>" + ("model" if message.role == "assistant" else message.role) + "\\n" }}
    {{- (system if loop.first else "") + message.content | trim + "<end_of_turn>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<start_of_turn>model\\n" }}{%- endif %}
"""

_GPT_OSS = """{{- "<|start|>system<|message|>You are ChatGPT.\\nCurrent date: " + strftime_now("%Y-%m-%d") }}
{{- "\\n\\nReasoning: " + (reasoning_effort or "medium") + "\\n\\n" }}
{{- "# Valid channels: analysis, commentary, final.<|end|>" }}
{%- if messages[0].role == "system" or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if messages[0].role == "system" %}{{- "# Instructions\\n\\n" + messages[0].content + "\\n\\n" }}{%- endif %}
    {%- if tools %}
        {{- "# Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n" }}
        {%- for tool in tools %}
            {{- "// " + tool.function.description + "\\ntype " + tool.function.name + " = (_: {" }}
            {%- for name in tool.function.parameters.properties or {} %}{{- name + ": any, " }}{%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- endfor %}
        {{- "} // namespace functions" }}
    {%- endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- set ns = namespace(call="") %}
{%- for message in messages %}
    {%- if message.role == "user" %}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- elif message.role == "tool" %}
        {%- if not ns.call %}{{- raise_exception("A result follows a call!") }}{%- endif %}
        {{- "<|start|>functions." + (message.name or ns.call) + " to=assistant<|channel|>commentary<|message|>" }}
        {{- message.content | tojson + "<|end|>" }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {%- set ns.call = call.name %}
        {%- if message.content %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
        {{- call.arguments | tojson + "<|call|>" }}
    {%- elif message.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content }}
        {{- "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}
"""

_DEEPSEEK = """{{- bos_token }}
{%- set ns = namespace(results=false) %}
{%- if messages[0].role == "system" %}{{- messages[0].content }}{%- endif %}
{%- for tool in tools or [] %}{{- "\\n\\n## Tool\\n" + tool.function | tojson }}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- "<｜User｜>" + message.content + ("" if loop.last else "<｜Assistant｜>") }}
    {%- elif message.role == "assistant" %}
        {%- set said = message.content.split("</think>")[-1] %}
        {{- ("<｜tool▁outputs▁end｜>" if ns.results else "") + said }}
        {%- set ns.results = false %}
        {%- if message.tool_calls %}
            {{- "<｜tool▁calls▁begin｜>" }}
            {%- for call in message.tool_calls %}
                {{- "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + call.function.name + "\\n```json\\n" }}
                {{- call.function.arguments | tojson + "\\n```<｜tool▁call▁end｜>" + ("" if loop.last else "\\n") }}
            {%- endfor %}
            {{- "<｜tool▁calls▁end｜>" }}
        {%- endif %}
        {{- "<｜end▁of▁sentence｜>" }}
    {%- elif message.role == "tool" %}
        {{- ("\\n" if ns.results else "<｜tool▁outputs▁begin｜>") + "<｜tool▁output▁begin｜>" }}
        {{- message.content + "<｜tool▁output▁end｜>" }}
        {%- set ns.results = true %}
    {%- endif %}
{%- endfor %}
{%- if ns.results %}{{- "<｜tool▁outputs▁end｜>" }}{%- endif %}
{%- if add_generation_prompt and not ns.results %}{{- "<｜Assistant｜>" }}{%- endif %}
"""

_QWEN_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_QWEN_STOPS = ("<|im_end|>", "<|endoftext|>")
_DEEPSEEK_TOOLS = tuple(
    f"<｜tool▁{name}｜>"
    for name in (
        *("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"),
        *("outputs▁begin", "outputs▁end", "output▁begin", "output▁end"),
    )
)
FAMILIES = {
    "llama": Family(
        "llama",
        _LLAMA,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eom_id|>", "<|eot_id|>"),
        ("<|eot_id|>", "<|eom_id|>"),
        begin="<|begin_of_text|>",
    ),
    "mistral": Family(
        "mistral",
        _MISTRAL,
        (
            *("<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "</s>"),
        ),
        ("</s>",),
        begin="<s>",
    ),
    "qwen2.5": Family("qwen", _QWEN25, _QWEN_TOKENS, _QWEN_STOPS),
    "qwen3": Family("qwen", _QWEN3, _QWEN_TOKENS, _QWEN_STOPS, added=("<think>", "</think>")),
    "qwen3 without thoughts": Family(
        "qwen",
        _QWEN3,
        _QWEN_TOKENS,
        _QWEN_STOPS,
        added=("<think>", "</think>"),
        variables={"enable_thinking": False},
    ),
    "gemma": Family("gemma", _GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>"), ("<end_of_turn>",), begin="<bos>"),
    "gpt_oss": Family(
        "gpt_oss",
        _GPT_OSS,
        ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
        ("<|return|>", "<|call|>"),
    ),
    "deepseek": Family(
        "deepseek",
        _DEEPSEEK,
        ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", *_DEEPSEEK_TOOLS, "<｜end▁of▁sentence｜>"),
        ("<｜end▁of▁sentence｜>",),
        begin="<｜begin▁of▁sentence｜>",
    ),
}
