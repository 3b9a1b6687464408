"""Small random models that read images, with the tokenizer, template and image processor of their families.

The template is written for these tests: it writes conversations as the families do.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import AddedToken

from agentrl.chat.tokenizer_training import build_tokenizer

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEXTS = [f"Which colour is the square {n}? The square is red, green or blue." for n in range(20)]
TEMPLATE = """{%- macro shown(content) -%}
{%- if content is string %}{{- content }}{%- else %}
{%- for part in content %}
{%- if part.type == "image" %}{{- "<|vision_start|><|image_pad|><|vision_end|>" }}
{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}
{%- endmacro -%}
{%- set instructions = shown(messages[0].content) if messages[0].role == "system" else "" %}
{%- if tools %}
{{- "<|im_start|>system\\n" + instructions + "\\n\\n# Tools\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" + (tool | tojson) }}{%- endfor %}
{{- "\\n</tools><|im_end|>\\n" }}
{%- elif instructions %}{{- "<|im_start|>system\\n" + instructions + "<|im_end|>\\n" }}{%- endif %}
{%- for message in messages %}
{%- if message.role == "user" %}{{- "<|im_start|>user\\n" + shown(message.content) + "<|im_end|>\\n" }}
{%- elif message.role == "assistant" %}{{- "<|im_start|>assistant\\n" + shown(message.content) }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- elif message.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- "<|im_start|>user" }}{%- endif %}
{{- "\\n<tool_response>\\n" + shown(message.content) + "\\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- "<|im_end|>\\n" }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}
"""
PATCH = 8
"""A token covers 16 x 16 pixels."""
KINDS = ("qwen2_5_vl", "qwen3_vl")


def processor(patch: int = PATCH) -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": (4 * patch) ** 2,
        "max_pixels": (12 * patch) ** 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def write(
    directory: Path, kind: str, *, hidden: int = 32, layers: int = 2, deviation: float = 0.12, patch: int = PATCH
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    words = build_tokenizer(TEXTS)
    words.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    words.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        )
    )
    (directory / "preprocessor_config.json").write_text(json.dumps(processor(patch)))
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **_config(kind, words, hidden, layers, deviation, patch))
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(directory)
    end = words.token_to_id("<|im_end|>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [end], "pad_token_id": end}))
    return directory


def _config(kind: str, words: Any, hidden: int, layers: int, deviation: float, patch: int) -> dict[str, Any]:
    ids = {name: words.token_to_id(token) for name, token in zip(_IDS, _TOKENS, strict=True)}
    width = hidden // 4
    text = {
        "vocab_size": words.get_vocab_size(),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": deviation,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": words.token_to_id("<|im_end|>"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [width // 2 - 2 * (width // 8), width // 8, width // 8],
        },
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_heads": 4,
        "patch_size": patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
        "initializer_range": deviation,
    }
    if kind == "qwen2_5_vl":
        vision |= {"window_size": 4 * patch, "fullatt_block_indexes": [1], "tokens_per_second": 2}
    else:
        text["head_dim"] = width
        text["rope_parameters"]["mrope_interleaved"] = True
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": False, **ids}


_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


def square(colour: tuple[int, int, int], width: int = 32, height: int = 32, kind: str = "PNG") -> bytes:
    """The bytes of an image with a square of this colour on grey. A mark distinguishes top from bottom."""
    image = Image.new("RGB", (width, height), (128, 128, 128))
    image.paste(colour, (4, 4, width - 4, height - 4))
    image.paste((0, 0, 0), (0, 0, width // 3, 3))
    written = io.BytesIO()
    image.save(written, kind)
    return written.getvalue()
