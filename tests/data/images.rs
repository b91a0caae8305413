//! Pixels to values, number by number.

use super::*;
use image::{DynamicImage, GrayImage, ImageBuffer, Luma, LumaA, Rgb, Rgba};
use mqq_concrete::resample::{Kernel, resize};

/// Red, green / blue, and one of its own.
const FOUR: [[u8; 3]; 4] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30]];

fn with(yaml: &str) -> Preprocessing {
    Preprocessing::from_yaml(yaml, "test.yaml").unwrap()
}

fn four() -> TempDir {
    let folder = folder();
    write_image(folder.path().join("a.png"), 2, 2, &FOUR);
    folder
}

fn values(folder: &TempDir, input: &InputSpec, yaml: &str) -> Values {
    let dataset = open_with(folder, &[""], std::slice::from_ref(input), &with(yaml)).unwrap();
    let mut sample = dataset.load(0).unwrap();
    assert_eq!(sample[0].shape, input.shape);
    sample.remove(0).values
}

#[test]
fn channels_scale_mean_and_std() {
    let folder = four();
    let nchw = input("x", &[1, 3, 2, 2], FLOAT);
    let nhwc = input("x", &[1, 2, 2, 3], FLOAT);
    let table: [(&InputSpec, &str, [f32; 12]); 5] = [
        (&nchw, "scale: 1", [255., 0., 0., 10., 0., 255., 0., 20., 0., 0., 255., 30.]),
        (&nhwc, "scale: 1", [255., 0., 0., 0., 255., 0., 0., 0., 255., 10., 20., 30.]),
        (&nhwc, "{scale: 1, color: bgr}", [0., 0., 255., 0., 255., 0., 255., 0., 0., 30., 20., 10.]),
        (&nchw, "{}", [1., 0., 0., 10. / 255., 0., 1., 0., 20. / 255., 0., 0., 1., 30. / 255.]),
        // Mean and std go with the model's channels: the first is blue.
        (
            &nchw,
            "{color: bgr, scale: 1, mean: [5, 10, 15], std: [1, 2, 5]}",
            [-5., -5., 250., 25., -5., 122.5, -5., 5., 48., -3., -3., -1.],
        ),
    ];
    for (input, yaml, expected) in table {
        assert_eq!(f32s(&values(&folder, input, yaml)), expected, "{yaml}");
    }
    let bytes = Values::U8(vec![255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30]);
    assert_eq!(values(&folder, &input("x", &[1, 2, 2, 3], UINT8), "preset: raw"), bytes);
}

#[test]
fn luma_is_that_of_pil() {
    let folder = four();
    let gray = input("x", &[1, 1, 2, 2], FLOAT);
    assert_eq!(f32s(&values(&folder, &gray, "scale: 1")), [76., 150., 29., 18.]);
    assert_eq!(f32s(&values(&folder, &gray, "{scale: 1, color: y}")), [76., 149., 29., 18.]);
}

#[test]
fn every_kind_of_png_is_read() {
    let rgba = ImageBuffer::from_pixel(1, 1, Rgba([1u8, 2, 3, 4])).into();
    let deep = ImageBuffer::from_pixel(1, 1, Rgb([257u16, 514, 65535])).into();
    let gray = GrayImage::from_pixel(1, 1, Luma([9])).into();
    let gray_alpha = ImageBuffer::from_pixel(1, 1, LumaA([9u8, 0])).into();
    let deep_gray = ImageBuffer::from_pixel(1, 1, Luma([257u16 * 7])).into();
    let cases: [(DynamicImage, [f32; 3]); 5] =
        [(rgba, [1., 2., 3.]), (deep, [1., 2., 255.]), (gray, [9.; 3]), (gray_alpha, [9.; 3]), (deep_gray, [7.; 3])];
    for (image, expected) in cases {
        let folder = folder();
        image.save(folder.path().join("a.png")).unwrap();
        let found = values(&folder, &input("x", &[1, 3, 1, 1], FLOAT), "scale: 1");
        assert_eq!(f32s(&found), expected, "{:?}", image.color());
    }
    let folder = folder();
    ImageBuffer::from_pixel(1, 1, Rgba([1u8, 2, 3, 4])).save(folder.path().join("a.png")).unwrap();
    let four_channels = input("x", &[1, 4, 1, 1], FLOAT);
    let found = values(&folder, &four_channels, "{scale: 1, color: bgr}");
    assert_eq!(f32s(&found), [3., 2., 1., 4.]);
}

#[test]
fn every_format_is_read() {
    for name in ["a.png", "a.bmp", "a.webp", "a.gif", "a.tiff", "a.ppm", "a.jpg"] {
        let folder = folder();
        write_image(folder.path().join(name), 8, 8, &[[200; 3]; 64]);
        let found = values(&folder, &input("x", &[1, 3, 1, 1], FLOAT), "scale: 1");
        assert_eq!(f32s(&found), [200.; 3], "{name}");
    }
}

/// As in torchvision and PIL; docs/guide.md says so.
#[test]
fn the_orientation_of_a_photograph_is_not_applied() {
    let folder = folder();
    let picture = image::RgbImage::from_fn(16, 16, |x, y| Rgb([x as u8 * 16, y as u8 * 16, 0]));
    picture.save(folder.path().join("a.jpg")).unwrap();
    let plain = std::fs::read(folder.path().join("a.jpg")).unwrap();
    // Orientation 6: to be turned by 90 degrees.
    let tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let exif = [&b"\xff\xe1\0\x22Exif\0\0"[..], tiff].concat();
    assert_eq!(exif.len(), 2 + 0x22);
    std::fs::write(folder.path().join("b.jpg"), [&plain[..2], &exif, &plain[2..]].concat()).unwrap();
    let input = input("x", &[1, 3, 16, 16], FLOAT);
    let dataset = open_with(&folder, &[""], std::slice::from_ref(&input), &with("scale: 1")).unwrap();
    assert_eq!(dataset.load(0).unwrap(), dataset.load(1).unwrap());
}

/// A gray image whose pixel at (x, y) is `10 y + x`.
fn ramp(width: u32, height: u32) -> TempDir {
    let folder = folder();
    GrayImage::from_fn(width, height, |x, y| Luma([(10 * y + x) as u8])).save(folder.path().join("a.png")).unwrap();
    folder
}

#[test]
fn crops_take_the_middle() {
    let gray = input("x", &[1, 1, 2, 3], FLOAT);
    let found = values(&ramp(6, 5), &gray, "{resize: none, crop: center, scale: 1}");
    // Two of three rows go off at the top, two of three columns on the left: half of three is rounded to even.
    assert_eq!(f32s(&found), [22., 23., 24., 32., 33., 34.]);
}

/// As in torchvision: `Resize(256)` makes the longer side `int(256 * long / short)`, and `CenterCrop(224)` begins at
/// `int(round((side - 224) / 2.0))`.
#[test]
fn resizing_and_cropping_are_those_of_torchvision() {
    // Width and height before, after the resize, and pixels cut on the left and at the top.
    let cases = [
        ([500, 334], [383, 256], [80, 16]),
        ([640, 427], [383, 256], [80, 16]),
        ([427, 640], [256, 383], [16, 80]),
        ([385, 256], [385, 256], [80, 16]),
        ([256, 387], [256, 387], [16, 82]),
        ([300, 300], [256, 256], [16, 16]),
    ];
    for (size, resized, cut) in cases {
        let folder = folder();
        GrayImage::new(size[0] as u32, size[1] as u32).save(folder.path().join("a.png")).unwrap();
        let inputs = [input("x", &[1, 3, 224, 224], FLOAT)];
        let dataset = open_with(&folder, &[""], &inputs, &with("preset: imagenet")).unwrap();
        let scale = [0, 1].map(|i| resized[i] as f64 / size[i] as f64);
        let expected = ImageFit { size, scale, offset: cut.map(|pixels: i32| -f64::from(pixels)) };
        assert_eq!(dataset.image_fits(0).unwrap(), [expected], "{size:?}");
        dataset.load(0).unwrap();
    }
}

/// Made with PIL 13.0: `Image.fromarray(a).resize((4, 3), filter)` of `a[y, x] = (37 x x + 91 y + 13 x y) % 256`.
#[test]
fn filters_are_those_of_pil() {
    // Filter, width and height before, values after.
    #[rustfmt::skip]
    let golden: [(&str, u32, u32, [f32; 12]); 8] = [
        ("bilinear", 7, 5, [60., 100., 134., 121., 152., 142., 156., 145., 109., 154., 148., 108.]),
        ("bicubic", 7, 5, [57., 98., 134., 121., 157., 143., 163., 147., 107., 161., 148., 104.]),
        ("lanczos", 7, 5, [58., 95., 131., 122., 158., 147., 169., 147., 105., 170., 142., 101.]),
        ("nearest", 7, 5, [0., 148., 80., 52., 182., 126., 110., 134., 108., 104., 140., 216.]),
        ("bilinear", 3, 2, [0., 23., 79., 148., 46., 73., 86., 79., 91., 122., 92., 9.]),
        ("bicubic", 3, 2, [0., 7., 80., 164., 44., 74., 88., 78., 94., 140., 96., 0.]),
        ("lanczos", 3, 2, [0., 0., 87., 174., 42., 73., 91., 78., 94., 156., 94., 0.]),
        ("nearest", 3, 2, [0., 37., 37., 148., 91., 141., 141., 9., 91., 141., 141., 9.]),
    ];
    for (filter, width, height, expected) in golden {
        let folder = folder();
        GrayImage::from_fn(width, height, |x, y| Luma([((37 * x * x + 91 * y + 13 * x * y) % 256) as u8]))
            .save(folder.path().join("a.png"))
            .unwrap();
        let yaml = format!("{{filter: {filter}, scale: 1}}");
        let found = values(&folder, &input("x", &[1, 1, 3, 4], FLOAT), &yaml);
        assert_eq!(f32s(&found), expected, "{filter} from {width}x{height}");
    }
}

#[test]
fn sizes_follow_the_resize_mode() {
    let first_row = |yaml: &str| {
        let found = values(&ramp(8, 4), &input("x", &[1, 1, 4, 4], FLOAT), yaml);
        f32s(&found)[..4].to_vec()
    };
    // PIL: 8x4 to 10x5, which is 256/224 of 4 rounded, then the middle.
    assert_eq!(first_row("{resize: short_side, scale: 1}"), [2., 3., 4., 5.]);
    assert_eq!(first_row("{resize: {short_side: 4}, scale: 1}"), [2., 3., 4., 5.]);
    assert_eq!(first_row("{resize: {exact: [4, 8]}, scale: 1}"), [2., 3., 4., 5.]);
    assert_eq!(first_row("{resize: exact, scale: 1}"), [1., 3., 5., 6.]);
}

#[test]
fn letterbox_pads_where_it_says() {
    let gray = input("x", &[1, 1, 4, 4], FLOAT);
    let rows = |yaml: &str| {
        let found = values(&ramp(4, 2), &gray, yaml);
        f32s(&found).chunks(4).map(|row| row[0]).collect::<Vec<_>>()
    };
    assert_eq!(rows("{resize: letterbox, scale: 1}"), [0., 10., 114., 114.]);
    assert_eq!(rows("{resize: letterbox_centered, scale: 1}"), [114., 0., 10., 114.]);
    assert_eq!(rows("{resize: letterbox, pad_value: 7, scale: 1}"), [0., 10., 7., 7.]);
}

#[test]
fn images_fill_a_batch() {
    let folder = folder();
    for (i, name) in ["a.png", "b.png", "c.png"].iter().enumerate() {
        write_image(folder.path().join(name), 1, 1, &[[i as u8; 3]]);
    }
    let pair = [input("x", &[2, 3, 1, 1], FLOAT)];
    assert_eq!(
        message(open(&folder, &[""], &pair), &folder),
        "1 image left over, expected a multiple of 2, the batch of input `x`\nhint: --limit 1 skips them: it counts batches"
    );
    let four = [input("x", &[4, 3, 1, 1], FLOAT)];
    assert_eq!(
        message(open(&folder, &[""], &four), &folder),
        "3 images left over, expected a multiple of 4, the batch of input `x`\nhint: pass 4 images or more, or set another batch size with --shape if the model allows it"
    );
    let dataset = open_with(&folder, &["a.png", "b.png"], &pair, &with("scale: 1")).unwrap();
    assert_eq!(f32s(&dataset.load(0).unwrap()[0].values), [0., 0., 0., 1., 1., 1.]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    assert_eq!((dataset.batch(), dataset.entry_names(0)), (2, vec![path("a.png"), path("b.png")]));
}

#[test]
fn models_that_take_no_images_say_why() {
    let folder = four();
    let image = || input("image", &[1, 3, 2, 2], FLOAT);
    let cases: [(&[InputSpec], &str, &str); 9] = [
        (
            &[input("x", &[1, 10], FLOAT)],
            "{}",
            "`a.png`: images cannot feed input `x`: it takes float32 of shape [1, 10], expected float32 or uint8 of rank 4\nhint: pass its data as .npy or .npz",
        ),
        (
            &[input("x", &[1, 3, 2, 2], INT64)],
            "{}",
            "`a.png`: images cannot feed input `x`: it takes int64 of shape [1, 3, 2, 2]",
        ),
        (
            &[input("x", &[1, 7, 2, 2], FLOAT)],
            "{}",
            "images cannot feed input `x`: its shape is [1, 7, 2, 2], expected [N, C, H, W] or [N, H, W, C] with 1, 3 or 4 channels",
        ),
        (&[image()], "layout: nhwc", "its shape is [1, 3, 2, 2], expected [N, H, W, C] with"),
        (
            &[image(), input("size", &[1, 2], INT64)],
            "{}",
            "`a.png`: an image feeds input `image`, but there are no data for `size`\nhint: use .npz files with one key per input",
        ),
        (&[image(), image()], "{}", "an image feeds one input, but the model takes `image`, `image`"),
        (
            &[image()],
            "mean: [1, 2]",
            "`mean` has 2 numbers, expected for input `image`: 1, or one for each of 3 channels",
        ),
        (&[image()], "color: gray", "`color`: gray gives 1 channel, input `image` takes 3 (shape [1, 3, 2, 2])"),
        (
            &[input("x", &[1, 2, 2, 3], UINT8)],
            "preset: imagenet",
            "input `x` takes uint8, but the preprocessing has a scale, mean or std, expected none of these",
        ),
    ];
    for (inputs, yaml, expected) in cases {
        let found = message(open_with(&folder, &["a.png"], inputs, &with(yaml)), &folder);
        assert!(found.contains(expected), "{found}\nexpected: {expected}");
    }
    let zero = Preprocessing { std: Some(vec![0.0]), ..Preprocessing::default() };
    let zero = open_with(&folder, &[""], &[image()], &zero);
    assert!(message(zero, &folder).contains("`std` is"));
}

#[test]
fn images_that_do_not_fit_are_named() {
    let folder = four();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let png = fs::read(folder.path().join("a.png")).unwrap();
    write("b.png", &png[..png.len() / 2]);
    write("c.png", b"");
    write("d.png", b"no image at all");
    let float = ImageBuffer::from_pixel(1, 1, Rgb([0.5f32, 0.5, 0.5]));
    DynamicImage::from(float).save(folder.path().join("e.tiff")).unwrap();
    write("f.png", b"\0\0\x01\0\x01\0 no icon");
    // Width 1, height 1, 8 bits, colors in CIELab.
    let tags = [(256u16, 1u32), (257, 1), (258, 8), (262, 8), (273, 8), (277, 1), (278, 1), (279, 1)];
    let mut tiff = [&b"II*\0\x08\0\0\0"[..], &(tags.len() as u16).to_le_bytes()].concat();
    for (tag, value) in tags {
        tiff.extend([&tag.to_le_bytes()[..], &4u16.to_le_bytes(), &1u32.to_le_bytes(), &value.to_le_bytes()].concat());
    }
    write("g.tiff", &[&tiff[..], &[0; 4]].concat());
    let inputs = [input("x", &[1, 3, 4, 4], FLOAT)];
    let dataset = open_with(&folder, &[""], &inputs, &with("resize: none")).unwrap();
    let expected = [
        "`a.png`: image is 2x2 pixels (width x height) before cropping, expected 4x4\nhint: set `resize: exact`",
        "`b.png`: cannot be decoded as PNG",
        "`c.png`: is empty, expected an image",
        "`d.png`: is not an image, expected JPEG, PNG",
        "`e.tiff`: image holds floats, expected pixels of 8 or 16 bits\nhint: pass the data as .npy",
        "`f.png`: is an image in the format ICO, expected JPEG, PNG, BMP, WebP, GIF, TIFF or PNM\nhint: convert it to PNG",
        "`g.tiff`: is a TIFF image of a kind that mqq does not read, expected gray or RGB pixels of 8 or 16 bits",
    ];
    assert_eq!(dataset.len(), expected.len());
    for (i, expected) in expected.iter().enumerate() {
        let found = message(dataset.load(i), &folder);
        assert!(found.starts_with(expected), "{found}\nexpected: {expected}");
    }
}

/// Pixels of one and three channels have code of their own, those of four go channel by channel.
#[test]
fn channels_are_resized_each_by_itself() {
    let pixels: Vec<u8> = (0..37 * 23 * 4).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let channels = |of: &[u8], wanted: &[usize]| -> Vec<u8> {
        of.chunks(4).flat_map(|pixel| wanted.iter().map(|&channel| pixel[channel])).collect()
    };
    for kernel in [Kernel::Nearest, Kernel::Bilinear, Kernel::Bicubic, Kernel::Lanczos] {
        for to in [[16, 11], [80, 61]] {
            let of_four = resize(&pixels, 4, [37, 23], to, kernel).unwrap();
            for wanted in [&[0, 1, 2][..], &[3], &[1]] {
                let alone = resize(&channels(&pixels, wanted), wanted.len(), [37, 23], to, kernel).unwrap();
                assert_eq!(alone, channels(&of_four, wanted), "{kernel:?} {to:?} {wanted:?}");
            }
        }
    }
}
