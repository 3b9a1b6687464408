"""Turns the tokens and images of a call into the input of SGLang, for models that read images.

SGLang's own processor for these models decodes the tokens to text, resizes the images once more and tokenizes the text
again, so an engine could compute different tokens and patches than the trainer. This processor leaves both unchanged.

Invariants:
- every id of the call keeps its place: an id of an image becomes the placeholder of the model, and no other id changes,
  even if the model itself sampled a placeholder;
- patches are computed as in the trainer, from the PNG in its original size;
- SGLang's caches distinguish images by their numbers, and a number stands for the same bytes as long as the server
  runs.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalProcessorOutput
from sglang.srt.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from sglang.srt.models.qwen3_vl import Qwen3VLForConditionalGeneration
from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor

# The same as in agentrl's tokens/image_ids.py, images/processing.py and images/numbered_urls.py.
FIRST = 1 << 31
FILES = ("preprocessor_config.json", "processor_config.json")
NUMBERED = re.compile(r"data:image/png;number=(\d{1,9});base64,", re.ASCII)
MOST_BYTES = 256 << 20
MOST_PIXELS = 64 << 20


class Patches(NamedTuple):
    """The patches of one image."""

    values: torch.Tensor
    rows: int
    """Rows of tokens."""
    columns: int
    merge: int

    @property
    def frames(self) -> torch.Tensor:
        return torch.tensor([[1, self.rows * self.merge, self.columns * self.merge]])


class NumberedImages(QwenVLImageProcessor):  # type: ignore[misc] # SGLang is not installed where types are checked
    """An image is a data URL with its number, and each of its tokens in the prompt is `FIRST` plus that number."""

    models: ClassVar[list[Any]] = [Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration]
    generates_input_ids_from_raw_prompt = False

    def __init__(self, hf_config: Any, server_args: Any, *others: Any, **named: Any) -> None:
        super().__init__(hf_config, server_args, *others, **named)
        self._processor_of_patches = _processor(Path(server_args.model_path))
        self._seen = SeenPatches(self._processor_of_patches)

    async def process_mm_data_async(self, image_data: Any, input_text: Any, *_: Any, **__: Any) -> Any:
        """Called by SGLang for each call. Raises ValueError, which SGLang answers with status 400."""
        if not isinstance(input_text, list):
            raise ValueError("Images need a prompt of tokens.")
        images = await asyncio.to_thread(self._seen.patches, image_data)
        return self._composed(input_text, images)

    def _composed(self, ids: list[int], images: dict[int, Patches]) -> Any:
        runs = image_runs(ids)
        for number, begin, end in runs:
            own = images.get(number)
            if own is None or own.rows * own.columns != end - begin:
                raise ValueError(f"The tokens show an image {number:07x} of {end - begin} tokens, which did not come.")
        items = []
        for number, begin, end in runs:
            own = images[number]
            item = MultimodalDataItem(
                modality=Modality.IMAGE,
                feature=own.values,
                offsets=[(begin, end - 1)],
                model_specific_data={"image_grid_thw": own.frames},
            )
            item.set_hash(number)
            items.append(item)
        placed = [self.IM_TOKEN_ID if one >= FIRST else one for one in ids]
        positions = torch.from_numpy(positions_of(len(ids), runs, images))
        return MultimodalProcessorOutput(
            input_ids=placed,
            padded_input_ids=MultimodalProcessorOutput.build_padded_input_ids(placed, items),
            mm_items=items,
            im_start_id=self.vision_start_token_id,
            im_end_id=self.vision_end_token_id,
            im_token_id=self.IM_TOKEN_ID,
            video_token_id=self.VIDEO_TOKEN_ID,
            mrope_positions=positions,
            mrope_position_delta=(positions.max() + 1 - len(ids)).reshape(1, 1),
        )


class SeenPatches:
    """The patches of images of earlier calls, for the next call that shows them. May be used by several threads."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._digests: dict[int, bytes] = {}
        self._patches: OrderedDict[int, Patches] = OrderedDict()
        self._bytes = 0
        self._turn = threading.Lock()

    def patches(self, image_data: list[Any]) -> dict[int, Patches]:
        found = {}
        for one in image_data:
            head = NUMBERED.match(one) if isinstance(one, str) else None
            if head is None:
                raise ValueError("An image of a call is no data URL of a PNG with its number.")
            found[int(head[1])] = self._one(int(head[1]), base64.b64decode(one[head.end() :], validate=True))
        return found

    def _one(self, number: int, png: bytes) -> Patches:
        digest = hashlib.blake2b(png, digest_size=16).digest()
        with self._turn:
            # The caches of SGLang are keyed by the number.
            if self._digests.setdefault(number, digest) != digest:
                raise ValueError(f"The image {number:07x} came with other bytes before.")
            if number in self._patches:
                self._patches.move_to_end(number)
                return self._patches[number]
            made = _patches(png, self._processor)
            self._patches[number] = made
            self._bytes += made.values.nbytes
            while self._bytes > MOST_BYTES and len(self._patches) > 1:
                self._bytes -= self._patches.popitem(last=False)[1].values.nbytes
        return made


def image_runs(ids: list[int]) -> list[tuple[int, int, int]]:
    """Number, begin and end of each image that the tokens show, in order."""
    shown = np.asarray(ids)
    changes = np.flatnonzero(np.diff(shown)) + 1
    begins, ends = [0, *changes.tolist()], [*changes.tolist(), len(ids)]
    return [
        (int(shown[begin]) - FIRST, begin, end)
        for begin, end in zip(begins, ends, strict=True)
        if begin < len(ids) and shown[begin] >= FIRST
    ]


def positions_of(length: int, runs: list[tuple[int, int, int]], images: dict[int, Patches]) -> np.ndarray[Any, Any]:
    """[3, tokens]: the time, row and column of each token, as the trainer has them. The positions of text continue
    after the longer side of the preceding image."""
    steps = np.ones(length + 1, dtype=np.int64)
    steps[0] = 0
    for number, begin, end in runs:
        steps[begin + 1 : end] = 0
        steps[end] = max(images[number].rows, images[number].columns)
    found = np.repeat(np.cumsum(steps)[None, :length], 3, axis=0)
    for number, begin, end in runs:
        at = np.arange(end - begin)
        found[1, begin:end] += at // images[number].columns
        found[2, begin:end] += at % images[number].columns
    return found


def _processor(directory: Path) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    file = next(directory / name for name in FILES if (directory / name).is_file())
    found = json.loads(file.read_bytes())
    return Qwen2VLImageProcessorPil(**found.get("image_processor", found))


def _patches(png: bytes, processor: Any) -> Patches:
    try:
        with Image.open(io.BytesIO(png), formats=("PNG",)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError("too many pixels")
            pixels = np.asarray(opened.convert("RGB"))
        made = processor(images=pixels, do_resize=False, return_tensors="np")
    except Exception as broken:  # noqa: BLE001 - decoders raise whatever they meet
        raise ValueError(f"An image cannot be decoded: {type(broken).__name__}.") from None
    [[_, rows, columns]] = made["image_grid_thw"].tolist()
    merge = int(processor.merge_size)
    values = torch.from_numpy(np.asarray(made["pixel_values"], dtype=np.float32))
    return Patches(values, rows // merge, columns // merge, merge)
