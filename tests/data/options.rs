//! Options as they are written, laid over each other and told.

use super::*;

fn yaml(text: &str) -> Result<Preprocessing> {
    Preprocessing::from_yaml(text, "p.yaml")
}

#[test]
fn yaml_sets_options() {
    let text = "preset: imagenet\nresize: {short_side: 300}\nfilter: bicubic\nscale: 1/255\nstd: [1]";
    let found = yaml(text).unwrap();
    assert_eq!(found.resize, Some(Resize::ShortSide(Some(300))));
    assert_eq!(found.filter, Some(Filter::Bicubic));
    assert_eq!(found.scale, Some(1.0 / 255.0));
    assert_eq!(found.mean.as_deref(), Some(&[0.485, 0.456, 0.406][..]));
    assert_eq!(found.std.as_deref(), Some(&[1.0][..]));
    assert_eq!(yaml("# nothing\n\n").unwrap(), Preprocessing::default());
    assert_eq!(yaml("scale: 0.5").unwrap().scale, Some(0.5));
    assert_eq!(yaml("scale: 2").unwrap().scale, Some(2.0));
    assert_eq!(yaml("{mean: 127.5, std: [1/2, 3]}").unwrap().mean, Some(vec![127.5]));
    assert_eq!(yaml("{mean: 127.5, std: [1/2, 3]}").unwrap().std, Some(vec![0.5, 3.0]));
}

#[test]
fn yaml_errors_name_line_and_key() {
    let cases = [
        (
            "color: rgb\nfliter: nearest",
            "`p.yaml`:2: unknown key `fliter`, expected one of `preset`, `resize`, `filter`",
            "\nhint: did you mean `filter`?",
        ),
        (
            "color: rbg",
            "`p.yaml`:1: `color`: unknown value `rbg`, expected one of `rgb`, `bgr`, `gray`, `y`",
            "\nhint: did you mean `rgb`?",
        ),
        (
            "\nresize: short_sid",
            "`p.yaml`:2: `resize`: unknown value `short_sid`",
            "\nhint: did you mean `short_side`?",
        ),
        ("resize: {short_side: 0}", "`p.yaml`:1: `resize`: `short_side=0`: `0` is not a number of pixels", "65535"),
        (
            "resize: {short_side: 3, exact: [1, 1]}",
            "`p.yaml`:1: `resize`: has the keys `short_side` and `exact`, expected one key",
            "",
        ),
        ("resize: letterbox=3", "`p.yaml`:1: `resize`: `letterbox=3`: `letterbox` takes no value", ""),
        ("scale: 1/0", "`p.yaml`:1: `scale`: `1/0` is not a number", "such as 1/255"),
        ("scale: [1]", "`p.yaml`:1: `scale`: found a list, expected a number, or a fraction such as 1/255", ""),
        ("pad_value: 300", "`p.yaml`:1: `pad_value`: found `300`, expected a whole number from 0 to 255", ""),
        ("preset: imagenett", "`p.yaml`: `preset`: preset `imagenett` is unknown", "\nhint: did you mean `imagenet`?"),
        ("mean: [1, 2", "`p.yaml`:", ""),
        ("mean: []", "`p.yaml`: `mean` is an empty list, expected one number, or one for each channel", ""),
        ("std: 0", "`p.yaml`: `std` is [0.0], expected no zeros", ""),
    ];
    for (text, start, end) in cases {
        let found = explain(&yaml(text).unwrap_err());
        assert!(found.starts_with(start) && found.ends_with(end), "{found}\nexpected: {start}…{end}");
    }
}

#[test]
fn names_are_presets_or_files() {
    for preset in PRESETS.iter() {
        let named = Preprocessing::named(&preset.name).unwrap();
        assert_eq!(named, preset.preprocessing());
        assert_eq!(named.clone().resolved().unwrap(), named);
        assert!(!preset.description.is_empty());
    }
    assert_eq!(Preprocessing::named("ImageNet").unwrap(), Preprocessing::named("imagenet").unwrap());
    let folder = folder();
    let path = folder.path().join("p.yaml");
    fs::write(&path, "color: bgr").unwrap();
    let named = Preprocessing::named(path.to_str().unwrap()).unwrap();
    assert_eq!(named.color, Some(Color::Bgr));
    let found = explain(&Preprocessing::named("yolx").unwrap_err());
    assert!(found.starts_with("preprocessing `yolx` is neither a file nor a preset, expected one of: imagenet, "));
    assert!(found.contains("\nhint: did you mean `yolo"), "{found}");
    let found = explain(&Preprocessing::named("no.yaml").unwrap_err());
    assert!(found.starts_with("`no.yaml`: is neither a file nor a preset, expected one of: imagenet, "), "{found}");
}

#[test]
fn what_lies_over_wins() {
    let flags = Preprocessing { color: Some(Color::Bgr), ..Preprocessing::default() };
    let found = Preprocessing::named("imagenet").unwrap().overlaid(flags);
    assert_eq!(found.color, Some(Color::Bgr));
    assert_eq!(found.resize, Some(Resize::ShortSide(None)));
}

#[test]
fn options_are_read_by_their_names() {
    for (text, resize) in [
        ("none", Resize::None),
        ("exact", Resize::Exact(None)),
        ("exact=20x30", Resize::Exact(Some((20, 30)))),
        ("short_side", Resize::ShortSide(None)),
        ("short_side=256", Resize::ShortSide(Some(256))),
        ("letterbox_centered", Resize::LetterboxCentered),
    ] {
        assert_eq!(parse_option::<Resize>(text).unwrap(), resize, "{text}");
    }
    assert_eq!(parse_option::<Resize>("256").unwrap(), Resize::ShortSide(Some(256)));
    assert_eq!(yaml("resize: 256").unwrap().resize, Some(Resize::ShortSide(Some(256))));
    assert_eq!(parse_option::<Layout>("nhwc").unwrap(), Layout::Nhwc);
    assert_eq!(parse_option::<Crop>("center").unwrap(), Crop::Center);
    assert_eq!(parse_option::<Layout>("NCHW").unwrap(), Layout::Nchw);
    assert_eq!(parse_option::<Color>("BGR").unwrap(), Color::Bgr);
    let found = explain(&parse_option::<Resize>("256x256").unwrap_err());
    assert!(found.starts_with("found `256x256`, expected `exact=256x256`"), "{found}");
    let found = explain(&parse_option::<Resize>("stretch").unwrap_err());
    assert!(found.starts_with("found `stretch`, expected `exact`"), "{found}");
    let found = explain(&parse_option::<Filter>("bilinar").unwrap_err());
    assert!(found.ends_with("\nhint: did you mean `bilinear`?"), "{found}");
}

#[test]
fn descriptions_say_what_is_default() {
    let cases = [
        (
            Preprocessing::default(),
            input("data", &[1, 3, 224, 224], FLOAT),
            "images for input `data`: stretched to 224x224 bilinear (default), RGB (default), /255 (default), NCHW [1, 3, 224, 224] (by its shape)",
        ),
        (
            Preprocessing::named("imagenet").unwrap(),
            input("data", &[1, 3, 224, 224], FLOAT),
            "images for input `data` (imagenet): short side to 256 bilinear, center crop 224x224, RGB, /255, mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225], NCHW [1, 3, 224, 224] (by its shape)",
        ),
        (
            yaml("{resize: letterbox, layout: nhwc, color: bgr, scale: 1}").unwrap(),
            input("x", &[1, 32, 64, 3], FLOAT),
            "images for input `x`: letterbox 64x32 bilinear, pad 114, BGR, 0..255, NHWC [1, 32, 64, 3]",
        ),
        (
            Preprocessing::named("raw").unwrap(),
            input("x", &[1, 32, 64, 1], UINT8),
            "images for input `x` (raw): stretched to 64x32 bilinear, gray (default), 0..255 as uint8, NHWC [1, 32, 64, 1] (by its shape)",
        ),
    ];
    let folder = folder();
    write_image(folder.path().join("a.png"), 1, 1, &[[0; 3]]);
    for (preprocessing, input, expected) in cases {
        let dataset = open_with(&folder, &[""], &[input], &preprocessing).unwrap();
        assert_eq!(dataset.describe().as_deref(), Some(expected));
    }
}
