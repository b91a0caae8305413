//! The search for ranges of activations.

use mqq::tune::methods::ranges::{follow_descent, least_error, relative_error};

#[test]
fn a_range_whose_error_is_no_number_is_never_the_best() {
    assert_eq!((relative_error(2.0, 4.0), relative_error(-1e-9, 4.0)), (0.5, 0.0));
    assert_eq!((relative_error(f64::NAN, 4.0), relative_error(f64::INFINITY, 4.0)), (f64::INFINITY, f64::INFINITY));
    let error = |error: &f64| Ok(relative_error(*error, 1.0));
    assert_eq!(least_error(&[3.0, f64::NAN, 2.0], error).unwrap(), Some((&2.0, 2.0)));
    assert_eq!(least_error(&[f64::NAN, 2.0], error).unwrap(), Some((&2.0, 2.0)));
    assert_eq!(follow_descent(3.0, 3.0, [vec![f64::NAN], vec![2.0]], error).unwrap(), Some(2.0));
}
