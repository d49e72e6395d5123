"""Chat templates in the manner of families that reason, shortened to what they have of it."""

_TURNS = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
)
_TURNS += "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
_CLOSED = (
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
QWEN = f"{_TURNS}{_CLOSED}{{%- endif %}}"  # the model itself opens reasoning
QWEN_THINKING = f"{_TURNS}{{{{- '<think>\\n' }}}}{{%- endif %}}"  # always
DEEPSEEK = f"{{% if not thinking is defined %}}{{% set thinking = false %}}{{% endif %}}{_TURNS}"
DEEPSEEK += "{%- if thinking %}{{- '<think>' }}{%- else %}{{- '</think>' }}{%- endif %}{%- endif %}"
GPT_OSS = """{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
{{- "<|start|>system<|message|>Reasoning: " + reasoning_effort + "<|end|>" }}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- if message.thinking %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
        {%- endif %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- else %}{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}"""
