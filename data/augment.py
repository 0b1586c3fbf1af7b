"""Random changes of images that do not change their classes.

They are pure functions of a batch and a key, for use in compiled steps.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from configs import declared

_RATIO = 4 / 3  # Largest ratio of a crop's sides.
_TRIES = 10  # Number of shapes that are drawn, of which the first fit is used.


@declared.check_arguments('data')
def make(
  *,
  crop_padding: int,
  crop_area: float,
  flip: bool,
  input_shape: tuple[int, ...],
) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns the function (inputs, key) -> inputs that changes training images.

  Args:
    crop_padding: Largest shift in pixels; 0 for none.
    crop_area: Smallest share of an image that a crop of random size shows; 1
      for no such crop.
    input_shape: Shape of one example.

  Raises:
    ValueError: If anything but images would be changed, or an argument is out
      of range.
  """
  if crop_area < 1 and crop_padding:
    raise ValueError(
      f'crop_padding: expected 0 beside crop_area {crop_area}, as images are '
      f'cropped once, got {crop_padding}.'
    )
  if not crop_padding and not flip and crop_area == 1:
    return lambda inputs, key: inputs
  if len(input_shape) != 3:
    raise ValueError(
      f'flip: expected no flip, no crop_padding and no crop_area for examples '
      f'of shape {input_shape}: only images are augmented.'
    )
  if crop_area == 1:
    return functools.partial(flip_and_crop, padding=crop_padding, flip=flip)
  return functools.partial(flip_and_resize, area=crop_area, flip=flip)


def flip_and_crop(
  inputs: jax.Array | np.ndarray,
  key: jax.Array,
  *,
  padding: int = 4,
  flip: bool = True,
) -> jax.Array:
  """Returns the images, each mirrored and shifted at random.

  An image is mirrored left to right with probability 1/2, surrounded by
  `padding` zeros on each side, and cropped to its size at a random position, as
  in He et al., 'Deep Residual Learning for Image Recognition' (CVPR, 2016),
  section 4.2.  They pad images whose mean was subtracted: pass prepared inputs
  for that, stored ones for black borders.  The same inputs and key give the
  same images.

  Args:
    inputs: [B, H, W, C], of any type.
    key: Typed key of all random choices.
    padding: Largest shift, pixels; 0 shifts nothing.
    flip: Whether to mirror, which digits, for example, do not survive.

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


def flip_and_resize(
  inputs: jax.Array | np.ndarray, key: jax.Array, *, area: float, flip: bool
) -> jax.Array:
  """Returns random parts of images, each resized to the whole image.

  A part has a share of the pixels between `area` and 1, uniformly, and a ratio
  of width to height between 3/4 and 4/3, uniformly in the logarithm; its
  position is random.  It is resized to the size of the image, as in Szegedy et
  al., 'Going Deeper with Convolutions' (CVPR, 2015).  Shapes that do not fit
  are drawn again; after ten of them the part is the whole image.  Pixels are
  weighted by triangles, which are as wide as an output's pixel where that is
  larger.

  Args:
    inputs: [B, H, W, C], floating point.
    key: Typed key of all random choices.
    area: Above 0, at most 1.
    flip: As in `flip_and_crop`.

  Returns:
    Images of the shape and type of `inputs`.
  """
  flip_key, crop_key = jax.random.split(key)
  images = jnp.asarray(inputs)
  boxes = jax.vmap(
    functools.partial(_box, (images.shape[1], images.shape[2]), area)
  )(jax.random.split(crop_key, len(images)))
  images = jax.vmap(resized)(images, boxes)
  return _flipped(images, flip_key) if flip else images


def resized(image: jax.Array, box: jax.Array) -> jax.Array:
  """Returns a box of an image, [H, W, C], resized to the size of the image.

  Args:
    image: Floating point [H, W, C].
    box: Float32 [4]: top, left, height and width, pixels.
  """
  scale = jnp.array(image.shape[:2], jnp.float32) / box[2:]
  part: jax.Array = jax.image.scale_and_translate(
    image, image.shape, (0, 1), scale, -box[:2] * scale, 'linear'
  )
  return part


def _box(size: tuple[int, int], area: float, key: jax.Array) -> jax.Array:
  """Returns top, left, height and width of a random part of an image."""
  whole = jnp.array(size, jnp.float32)
  areas, ratios, place = jax.random.split(key, 3)
  shares = jax.random.uniform(areas, (_TRIES,), minval=area, maxval=1.0)
  bound = math.log(_RATIO)
  ratio = jnp.exp(
    jax.random.uniform(ratios, (_TRIES,), minval=-bound, maxval=bound)
  )
  pixels = shares * whole.prod()
  drawn = jnp.sqrt(jnp.stack([pixels / ratio, pixels * ratio], axis=-1))
  fits = (drawn <= whole).all(axis=-1)
  first = jnp.where(fits.any(), drawn[jnp.argmax(fits)], whole)
  return jnp.concatenate(
    [jax.random.uniform(place, (2,)) * (whole - first), first]
  )


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
