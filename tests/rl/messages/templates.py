"""Chat templates with the structure of well-known families, and tokenizers with their marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tiny import build_tokenizer


@dataclass(frozen=True)
class Family:
    """How a family of models writes a conversation.

    ``ends`` are the marks with which its models end a turn: after an answer, and after a call.
    """

    template: str
    ends: tuple[str, str]
    marks: tuple[str, ...]
    eos: str
    call: str = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'

    def tokenizer(self) -> Any:
        tokenizer = build_tokenizer()
        marks = [mark for mark in self.marks if mark not in tokenizer.get_vocab()]
        tokenizer.add_tokens(marks, special_tokens=True)
        tokenizer.eos_token = self.eos
        tokenizer.chat_template = self.template
        return tokenizer


_CHATML_MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_TOOLS_IN_SYSTEM = """{% if messages[0].role == 'system' %}
{% set system = messages[0].content %}{% set rest = messages[1:] %}
{% else %}{% set system = 'Be helpful.' %}{% set rest = messages %}{% endif %}
{{- '<|im_start|>system\n' + system }}
{%- if tools %}{{- '\n\n# Tools\n' + tools | tojson }}{% endif %}
{{- '<|im_end|>\n' }}
"""
_TOOLS_AS_USER = """{%- if m.role == 'tool' %}
{%- if loop.first or rest[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or rest[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}
"""
_CALLS = """{%- for c in m.tool_calls or [] %}
{{- '<tool_call>\n' + c.function | tojson + '\n</tool_call>' }}
{%- endfor %}
"""
QWEN_2 = (
    _TOOLS_IN_SYSTEM
    + "{%- for m in rest %}\n"
    + _TOOLS_AS_USER
    + "{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\n' + m.content }}\n"
    + _CALLS
    + """{{- '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""
)
QWEN_3 = (
    _TOOLS_IN_SYSTEM
    + """{%- set ns = namespace(asked=0) %}
{%- for m in rest %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}
{%- for m in rest %}
"""
    + _TOOLS_AS_USER
    + """{%- elif m.role == 'assistant' %}
{%- set said = m.content.split('</think>')[-1].lstrip('\n') %}
{%- set thought = '' %}
{%- if '</think>' in m.content %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.asked and (loop.last or thought) %}
{{- '<think>\n' + thought + '\n</think>\n\n' }}
{%- endif %}
{{- said }}
"""
    + _CALLS
    + """{{- '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""
)
HERMES = """{{- bos_token + '<|im_start|>system\nYou call functions. ' }}
{%- for t in tools or [] %}{{- t.function | tojson + '\n' }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>tool\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""
LLAMA_3 = """{{- bos_token }}
{%- macro head(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{% endmacro %}
{{- head('system') + 'Environment: ipython<|eot_id|>' }}
{%- set ns = namespace(tools=tools) %}
{%- for m in messages %}
{%- if m.role in ['tool', 'ipython'] %}
{{- head('ipython') + m.content | tojson + '<|eot_id|>' }}
{%- elif m.tool_calls %}
{{- head('assistant') + m.tool_calls[0].function | tojson + '<|eot_id|>' }}
{%- else %}
{{- head(m.role) }}
{%- if m.role == 'user' and ns.tools %}
{{- 'Functions: ' + ns.tools | tojson + '\n\n' }}{% set ns.tools = none %}
{%- endif %}
{{- m.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- head('assistant') }}{% endif %}
"""
LLAMA_2 = """{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate.') }}
{%- endif %}
{%- if m.role == 'user' %}{{- bos_token + '[INST] ' + m.content | trim + ' [/INST]' }}
{%- else %}{{- ' ' + m.content | trim + ' ' + eos_token }}{% endif %}
{%- endfor %}
"""
MISTRAL = """{{- bos_token }}
{%- set ns = namespace(index=0, last=0) %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- if m.role != 'tool' and not m.tool_calls %}
{%- if (m.role == 'user') != (ns.index % 2 == 0) %}
{{- raise_exception('After an optional system message, roles must alternate.') }}
{%- endif %}
{%- set ns.index = ns.index + 1 %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.index0 == ns.last %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for c in m.tool_calls %}
{%- if c.id | length != 9 %}{{- raise_exception('An id has nine characters.') }}{% endif %}
{{- c.function | tojson + ', "id": "' + c.id + '"}' }}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}
{{- raise_exception('An id has nine characters.') }}
{%- endif %}
{{- '[TOOL_RESULTS]' + {'content': m.content, 'call_id': m.tool_call_id} | tojson }}
{{- '[/TOOL_RESULTS]' }}
{%- else %}{{- m.content + eos_token }}{% endif %}
{%- endfor %}
"""
GEMMA = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant.') }}
{%- endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{% endif %}
"""
DEEPSEEK = """{%- set ns = namespace(results=false) %}
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if not ns.results %}{{- '<｜tool▁outputs▁begin｜>' }}{% set ns.results = true %}{% endif %}
{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- else %}
{%- if ns.results %}{{- '<｜tool▁outputs▁end｜>' }}{% set ns.results = false %}{% endif %}
{%- if m.role == 'user' %}{{- '<｜User｜>' + m.content }}
{%- else %}{{- '<｜Assistant｜>' + m.content.split('</think>')[-1] + eos_token }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if ns.results %}{{- '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\n' }}{% endif %}
"""
DEEPSEEK_32 = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<｜User｜>' + m.content + '<｜Assistant｜>' }}
{%- elif m.role == 'assistant' %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}{{- '\n\n<call>' + c.function | tojson + '</call>' }}{% endfor %}
{{- eos_token }}
{%- else %}
{%- set calls = messages[loop.index0 - 1].tool_calls or [] %}
{%- for c in calls if c.id == m.tool_call_id %}
{{- '\n\n<results of="' + c.function.name + '">' }}
{%- endfor %}
{{- '\n<result>' + m.content + '</result>' }}
{%- if calls %}{{- '\n</results>\n\n' }}{% endif %}
{%- endif %}
{%- endfor %}
"""
HARMONY = """{{- '<|start|>system<|message|>You are a model.<|end|>' }}
{%- if tools %}{{- '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}
{%- set ns = namespace(called=none) %}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- set f = m.tool_calls[0].function %}{% set ns.called = f.name %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' + f.name }}
{{- ' <|constrain|>json<|message|>' + f.arguments | tojson + '<|call|>' }}
{%- elif m.role == 'assistant' %}
{%- set ns.called = none %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- elif m.role == 'tool' %}
{%- if ns.called is none %}{{- raise_exception('No call before a tool message.') }}{% endif %}
{{- '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson + '<|end|>' }}
{%- else %}{{- '<|start|>user<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}
"""
GLM = """{{- '[gMASK]<sop>' }}
{%- for m in messages %}
{{- '<|observation|>' if m.role == 'tool' else '<|' + m.role + '|>' }}
{{- '\n' + m.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""
GEMMA_4 = """{{- bos_token }}
{%- set ns = namespace(called=false) %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if ns.called %}
{{- '<|tool_response>' + m.name + ':' + m.content + '<tool_response|>' }}
{%- endif %}
{%- else %}
{%- set ns.called = m.tool_calls | length > 0 %}
{{- '<|turn>' + m.role + '\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<|tool_call>call:' + c.function.name + (c.function.arguments | tojson) + '<tool_call|>' }}
{%- endfor %}
{%- if loop.last or not ns.called %}{{- '<turn|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.called %}{{- '<|turn>assistant\n' }}{% endif %}
"""
COHERE = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|START|><|ANSWER|>' + m.content + '<|END_ANSWER|><|END|>' }}
{%- elif m.role == 'user' %}{{- '<|START|>' + m.content + '<|END|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|START|><|ANSWER|>' }}{% endif %}
"""
QWEN_3_THINKING = QWEN_3.replace(
    "{{- '<|im_start|>assistant\n' }}{% endif %}\n",
    "{{- '<|im_start|>assistant\n<think>\n' }}{% endif %}\n",
)
SMOLLM_2 = """{%- for m in messages %}
{%- if loop.first and m.role != 'system' %}
{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""
SMOLLM_3 = """{{- '<|im_start|>system\n## Metadata\n\nReasoning Mode: /no_think\n\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
{%- if tools %}{{- '### Tools\n\n' + tools | tojson }}{% endif %}
{{- '<|im_end|>\n' }}
{%- for m in messages %}
{%- if m.role == 'user' or m.role == 'tool' %}
{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\n<think>\n\n</think>\n' + m.content.lstrip('\n') + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n\n</think>\n' }}{% endif %}
"""
PHI_4 = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_sep|>' }}{% endif %}
"""
PHI_4_MINI = """{%- for m in messages %}
{%- if m.role == 'system' and tools %}
{{- '<|system|>' + m.content + '<|tool|>' + tools | tojson + '<|/tool|><|end|>' }}
{%- elif m.role == 'tool' %}{{- '<|tool_response|>' + m.content + '<|end|>' }}
{%- else %}{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{{- '<|assistant|>' if add_generation_prompt else eos_token }}
"""
GRANITE = """{%- macro head(role) %}
{{- '<|start_of_role|>' + role + '<|end_of_role|>' }}
{%- endmacro %}
{%- if messages[0].role != 'system' %}
{{- head('system') + 'You are Granite.<|end_of_text|>\n' }}
{%- endif %}
{%- if tools %}{{- head('tools') + tools | tojson + '<|end_of_text|>\n' }}{% endif %}
{%- for m in messages %}
{%- set role = 'tool_response' if m.role == 'tool' else m.role %}
{{- head(role) + m.content + '<|end_of_text|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- head('assistant') }}{% endif %}
"""
KIMI = """{%- if tools %}
{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{- '<|im_assistant|>assistant<|im_middle|>' }}
{%- elif m.role == 'user' %}{{- '<|im_user|>user<|im_middle|>' }}
{%- else %}{{- '<|im_system|>' + m.role + '<|im_middle|>' }}{% endif %}
{{- m.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}
"""
PLAIN_CALL = '{"name": "add", "parameters": {"a": 2}}'
FAMILIES = {
    "qwen2": Family(QWEN_2, ("<|im_end|>", "<|im_end|>"), _CHATML_MARKS, "<|im_end|>"),
    "qwen3": Family(QWEN_3, ("<|im_end|>", "<|im_end|>"), _CHATML_MARKS, "<|im_end|>"),
    "hermes": Family(HERMES, ("<|im_end|>", "<|im_end|>"), _CHATML_MARKS, "<|im_end|>"),
    "llama3": Family(
        LLAMA_3,
        ("<|eot_id|>", "<|eom_id|>"),
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        "<|eot_id|>",
        "<|python_tag|>" + PLAIN_CALL,
    ),
    "llama2": Family(LLAMA_2, ("</s>", "</s>"), ("</s>",), "</s>"),
    "mistral": Family(
        MISTRAL,
        ("</s>", "</s>"),
        (
            *("</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        "</s>",
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2}, "id": "aB3dE6gH9"}]',
    ),
    "gemma": Family(
        GEMMA,
        ("<end_of_turn>", "<end_of_turn>"),
        ("<start_of_turn>", "<end_of_turn>", "<eos>"),
        "<eos>",
    ),
    "deepseek": Family(
        DEEPSEEK,
        ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        (
            *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
            *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
            *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
            *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
        ),
        "<｜end▁of▁sentence｜>",
        'I add.</think><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 2}<｜tool▁call▁end｜>',
    ),
    "deepseek 3.2": Family(
        DEEPSEEK_32,
        ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        "<｜end▁of▁sentence｜>",
    ),
    "harmony": Family(
        HARMONY,
        ("<|return|>", "<|call|>"),
        (
            *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"),
            *("<|end|>", "<|call|>", "<|return|>"),
        ),
        "<|return|>",
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}',
    ),
    "glm": Family(
        GLM,
        ("<|user|>", "<|observation|>"),
        ("[gMASK]", "<sop>", "<|user|>", "<|observation|>", "<|assistant|>", "<|endoftext|>"),
        "<|endoftext|>",
    ),
    "gemma4": Family(
        GEMMA_4,
        ("<turn|>", "<tool_call|>"),
        (
            *("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>"),
            *("<|tool_response>", "<tool_response|>"),
        ),
        "<turn|>",
    ),
    "cohere": Family(
        COHERE,
        ("<|END_ANSWER|><|END|>", "<|END_ANSWER|><|END|>"),
        ("<|START|>", "<|ANSWER|>", "<|END_ANSWER|>", "<|END|>"),
        "<|END|>",
    ),
    "qwen3 thinking": Family(
        QWEN_3_THINKING,
        ("<|im_end|>", "<|im_end|>"),
        _CHATML_MARKS,
        "<|im_end|>",
        'I add.</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>',
    ),
    "smollm2": Family(
        SMOLLM_2,
        ("<|im_end|>", "<|im_end|>"),
        _CHATML_MARKS,
        "<|im_end|>",
        '<tool_call>[{"name": "add", "arguments": {"a": 2}}]</tool_call>',
    ),
    "smollm3": Family(SMOLLM_3, ("<|im_end|>", "<|im_end|>"), _CHATML_MARKS, "<|im_end|>"),
    "phi4": Family(
        PHI_4, ("<|im_end|>", "<|im_end|>"), (*_CHATML_MARKS, "<|im_sep|>"), "<|im_end|>"
    ),
    "phi4-mini": Family(
        PHI_4_MINI,
        ("<|end|>", "<|end|>"),
        (
            *("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
            *("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>", "<|tool_response|>"),
        ),
        "<|endoftext|>",
        '<|tool_call|>[{"name": "add", "arguments": {"a": 2}}]<|/tool_call|>',
    ),
    "granite": Family(
        GRANITE,
        ("<|end_of_text|>", "<|end_of_text|>"),
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
        "<|end_of_text|>",
        '<|tool_call|>[{"name": "add", "arguments": {"a": 2}}]',
    ),
    "kimi": Family(
        KIMI,
        ("<|im_end|>", "<|im_end|>"),
        (
            *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
        "<|im_end|>",
        '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 2}<|tool_call_end|>',
    ),
}
