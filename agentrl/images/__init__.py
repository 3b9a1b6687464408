"""Images within conversations: their sources, the form in which a model sees them, and the positions of their tokens.

    run_images    settings of the run file about images
    sources       which images a message names, and their bytes
    processing    settings of the model's directory: sizes, tokens, limits
    decoding      bytes of any origin to pixels, by Pillow
    patches       pixels to the input of a vision tower, by the model's image processor
    positions     the three positions of each token of a model that reads images

An image is stored once, by the hash of its bytes, and has a number in its run. In text, `MARK` stands for an image; in
tokens, its id (`agentrl.tokens.image_ids`).

Invariants:
- the sampler decodes the bytes of an image before any engine or trainer sees them; bytes that cannot be decoded within
  the limits give an error of one sentence;
- engine and trainer get the image in the size that the model sees, without loss, so that both compute the same patches.
"""
