//! Files that are given as models but are of another kind, by their first bytes.

/// A kind of file.
pub(super) struct OtherKind {
    /// The offset of its mark.
    offset: usize,
    mark: &'static [u8],
    /// Its name with an article.
    pub name: &'static str,
    pub hint: &'static str,
}

const PYTORCH: &str = "torch.onnx.export in Python writes an ONNX model";
const PAGE: &str = "download the file itself instead of its page";
const CONVERTED: &str = "pass the ONNX model that it was made from";

const OTHER_KINDS: &[OtherKind] = &[
    OtherKind { offset: 0, mark: b"version https://git-lfs", name: "a Git LFS pointer", hint: "run `git lfs pull`" },
    OtherKind { offset: 4, mark: b"TFL3", name: "a TFLite model", hint: "tf2onnx converts TFLite models to ONNX" },
    OtherKind { offset: 4, mark: b"ORTM", name: "a model in ORT format", hint: CONVERTED },
    OtherKind { offset: 0, mark: b"PK\x03\x04", name: "a ZIP archive, as PyTorch writes", hint: PYTORCH },
    OtherKind { offset: 0, mark: b"\x80\x02", name: "a pickle file, as PyTorch writes", hint: PYTORCH },
    OtherKind { offset: 0, mark: b"\x89HDF", name: "an HDF5 file", hint: "tf2onnx converts Keras models to ONNX" },
    OtherKind { offset: 0, mark: b"<!DOCTYPE", name: "an HTML page", hint: PAGE },
    OtherKind { offset: 0, mark: b"<!doctype", name: "an HTML page", hint: PAGE },
    OtherKind { offset: 0, mark: b"<html", name: "an HTML page", hint: PAGE },
    OtherKind { offset: 0, mark: b"<?xml", name: "an XML file, as OpenVINO writes", hint: CONVERTED },
    OtherKind { offset: 0, mark: b"<net", name: "an XML file, as OpenVINO writes", hint: CONVERTED },
];

/// Returns the kind of a file that does not parse as an ONNX model.
pub(super) fn of(bytes: &[u8]) -> Option<&'static OtherKind> {
    let has_mark = |kind: &&OtherKind| bytes.get(kind.offset..).is_some_and(|bytes| bytes.starts_with(kind.mark));
    OTHER_KINDS.iter().find(has_mark)
}
