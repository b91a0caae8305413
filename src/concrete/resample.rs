//! Resizing of 8-bit images. The only module that uses fast_image_resize.

use anyhow::Result;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

/// Interpolation of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The nearest pixel.
    Nearest,
    /// Triangle, widened when the image shrinks.
    Bilinear,
    /// Catmull-Rom, widened likewise.
    Bicubic,
    /// Three lobes of a windowed sinc, widened likewise.
    Lanczos,
}

/// Resizes an 8-bit image of size `from` to size `to`, both `[width, height]`. Rows are from the top, channels last.
///
/// # Errors
/// If `pixels` does not have the image's size.
pub fn resize(pixels: &[u8], n_channels: usize, from: [u32; 2], to: [u32; 2], kernel: Kernel) -> Result<Vec<u8>> {
    let algorithm = match kernel {
        Kernel::Nearest => ResizeAlg::Nearest,
        Kernel::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
        Kernel::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
        Kernel::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
    };
    let n_pixels = to[0] as usize * to[1] as usize;
    let mut resized = vec![0; n_pixels * n_channels];
    match n_channels {
        1 => resample::<U8>(pixels, from, &mut resized, to, algorithm)?,
        3 => resample::<U8x3>(pixels, from, &mut resized, to, algorithm)?,
        // Each pixel type is slow to compile: images with rare numbers of channels are resized channel by channel.
        _ => {
            let mut of_channel = vec![0; n_pixels];
            for channel in 0..n_channels {
                let plane: Vec<u8> = pixels.iter().copied().skip(channel).step_by(n_channels).collect();
                resample::<U8>(&plane, from, &mut of_channel, to, algorithm)?;
                let resized = resized.iter_mut().skip(channel).step_by(n_channels);
                resized.zip(&of_channel).for_each(|(to, from)| *to = *from);
            }
        }
    }
    Ok(resized)
}

fn resample<P: PixelTrait>(
    pixels: &[u8],
    from: [u32; 2],
    resized: &mut [u8],
    to: [u32; 2],
    algorithm: ResizeAlg,
) -> Result<()> {
    let source = TypedImageRef::<P>::from_buffer(from[0], from[1], pixels)?;
    let mut target = TypedImage::<P>::from_buffer(to[0], to[1], resized)?;
    let options = ResizeOptions::new().resize_alg(algorithm);
    Ok(Resizer::new().resize_typed(&source, &mut target, &options)?)
}
