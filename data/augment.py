"""Random changes of images that leave their classes as they are.

Pure functions of a batch and a key, to run inside the jitted step.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def make(
  *, crop_padding: int, flip: bool, input_shape: tuple[int, ...]
) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns (inputs, key) -> inputs as a run changes them in training.

  Args:
    crop_padding: Largest shift, pixels; 0 shifts nothing.
    flip: Whether to mirror.
    input_shape: Of one example.

  Raises:
    ValueError: If anything but images would be changed, or `crop_padding` is
      negative.
  """
  if crop_padding < 0:
    raise ValueError(f'crop_padding: expected at least 0, got {crop_padding}.')
  if not crop_padding and not flip:
    return lambda inputs, key: inputs
  if len(input_shape) != 3:
    raise ValueError(
      f'flip: expected no flip and no crop_padding for examples of shape '
      f'{input_shape}: only images are augmented.'
    )
  return functools.partial(flip_and_crop, padding=crop_padding, flip=flip)


def flip_and_crop(
  inputs: jax.Array | np.ndarray,
  key: jax.Array,
  *,
  padding: int = 4,
  flip: bool = True,
) -> jax.Array:
  """Returns the images flipped and shifted, each at random by itself.

  An image is mirrored left to right with probability 1/2, surrounded by
  `padding` zeros on each side, and cropped to its size anywhere in there, as
  in He et al., 'Deep Residual Learning for Image Recognition' (CVPR, 2016),
  section 4.2, who pad images whose mean was subtracted: pass prepared inputs
  for that, stored ones for black borders.  The same inputs and key give the
  same images.

  Args:
    inputs: [B, H, W, C], of any type.
    key: Typed key of all random choices.
    padding: Largest shift, pixels; 0 shifts nothing.
    flip: Whether to mirror; digits, for one, do not stay what they are.

  Returns:
    Images of the shape and type of `inputs`.

  Raises:
    ValueError: If `inputs` has not four dimensions or `padding` is negative.
  """
  if inputs.ndim != 4:
    raise ValueError(f'inputs: expected [B, H, W, C], got {inputs.shape}.')
  if padding < 0:
    raise ValueError(f'padding: expected at least 0, got {padding}.')
  flip_key, crop_key = jax.random.split(key)
  images = jnp.asarray(inputs)
  if flip:
    images = _flipped(images, flip_key)
  return _cropped(images, crop_key, padding) if padding else images


def _flipped(images: jax.Array, key: jax.Array) -> jax.Array:
  mirrored = jax.random.bernoulli(key, shape=(len(images), 1, 1, 1))
  return jnp.where(mirrored, images[:, :, ::-1], images)


def _cropped(images: jax.Array, key: jax.Array, padding: int) -> jax.Array:
  margin = (padding, padding)
  padded = jnp.pad(images, ((0, 0), margin, margin, (0, 0)))
  corners = jax.random.randint(key, (len(images), 2), 0, 2 * padding + 1)

  def crop(image: jax.Array, corner: jax.Array) -> jax.Array:
    start = (corner[0], corner[1], 0)
    return jax.lax.dynamic_slice(image, start, images.shape[1:])

  return jax.vmap(crop)(padded, corners)
