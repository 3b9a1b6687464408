"""Images within conversations: where they come from, what a model sees of them, and where their tokens stand.

    run_images    what the run file says of images
    sources       which images a message names, and their bytes
    processing    how the model's directory says that images are shown: sizes, tokens, limits
    decoding      bytes of any origin to pixels, by Pillow
    patches       pixels to what a vision tower reads, by the model's image processor
    positions     the three positions of each token of a model that reads images

An image is stored once, by the hash of its bytes, and has a number in its run. Text has `MARK` where an image stands,
tokens have the id of the image (`agentrl.tokens.image_ids`).

Invariants:
- the bytes of an image are decoded by the sampler before any engine or trainer sees them; what cannot be decoded within
  the limits is one sentence;
- what an engine and the trainer get is the image in the size that the model sees, without loss, so that both compute
  the same patches.
"""
