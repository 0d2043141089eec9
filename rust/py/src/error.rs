use foldline_core::Error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pyo3::create_exception!(
    _core,
    CoreError,
    PyValueError,
    "What the core refuses; `reason` is stable, `message` may change."
);

/// Carries a core error over the border; a foreign type cannot be converted directly.
pub struct Raised(Error);

impl From<Error> for Raised {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Raised> for PyErr {
    fn from(Raised(error): Raised) -> Self {
        let message = error.to_string();
        let raised = CoreError::new_err(message.clone());
        Python::attach(|py| {
            let value = raised.value(py);
            // Setting an attribute of a fresh exception fails only without memory.
            let _ = value.setattr("reason", error.reason());
            let _ = value.setattr("message", message);
        });
        raised
    }
}

pub type Result<T> = std::result::Result<T, Raised>;
