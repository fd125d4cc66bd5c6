//! A file of kernels and tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::error::CiError;
use super::settings::Settings;

/// Kernels and tests. Each test is for each kernel.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Matrix {
    /// What all jobs have.
    pub defaults: Settings,
    /// By their names.
    pub kernels: BTreeMap<String, Settings>,
    /// By their names.
    pub tests: BTreeMap<String, Settings>,
}

impl Matrix {
    /// Reads a file, whose paths count from `base`.
    ///
    /// # Errors
    /// It can't be read, or has what no matrix has.
    pub fn read(file: &Path, base: &Path) -> Result<Self, CiError> {
        let text = fs::read_to_string(file).map_err(|cause| CiError::Read {
            file: file.to_owned(),
            cause,
        })?;
        let matrix: Self = toml::from_str(&text).map_err(|cause| CiError::Matrix {
            file: file.to_owned(),
            cause: Box::new(cause),
        })?;
        let based = |all: BTreeMap<String, Settings>| {
            let all = all.into_iter();
            all.map(|(name, settings)| (name, settings.based_on(base)))
                .collect()
        };
        Ok(Self {
            defaults: matrix.defaults.based_on(base),
            kernels: based(matrix.kernels),
            tests: based(matrix.tests),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = include_str!("../../../docs/ci-matrix.schema.json");
    const EXAMPLE: &str = r#"
[defaults]
root = "/"
timeout = "5m"
allow = ["warning"]

[kernels."6.12"]
kernel = "bzImage"

[tests.files]
run = "make check"
only = ["6.12"]
expect = ["5 p:opened vfs_open if comm == \"sh\""]
max-latency = [{ probe = "r vfs_fsync", time = "50ms" }]
"#;

    fn is_valid(text: &str) -> bool {
        let schema = serde_json::from_str(SCHEMA).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let value: toml::Value = toml::from_str(text).unwrap();
        validator.is_valid(&serde_json::to_value(value).unwrap())
    }

    #[test]
    fn a_matrix_is_what_the_schema_says() {
        let matrix: Matrix = toml::from_str(EXAMPLE).unwrap();
        assert!(is_valid(EXAMPLE));
        assert_eq!(matrix.kernels["6.12"].kernel, Some("bzImage".into()));
        assert_eq!(matrix.tests["files"].max_latency[0].time, "50ms");
        for wrong in [
            "[defaults]\nrots = \"/\"",
            "[kernel.x]\nkernel = \"y\"",
            "[tests.x]\nmemory = \"1\"",
            "[tests.x]\nmax-latency = [{ probe = \"r f\" }]",
            "[tests.x]\nas-user = 1",
        ] {
            assert!(toml::from_str::<Matrix>(wrong).is_err(), "{wrong}");
            assert!(!is_valid(wrong), "{wrong}");
        }
    }

    #[test]
    fn the_schema_has_the_keys_that_are_read() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        let keys = schema["$defs"]["settings"]["properties"]
            .as_object()
            .unwrap();
        // An unknown key is reported with all known ones.
        let error = toml::from_str::<Settings>("no-key = 1").unwrap_err();
        let text = error.to_string();
        let told: Vec<&str> = text.split('`').skip(3).step_by(2).collect();
        assert_eq!(told.len(), keys.len(), "{text}");
        for key in told {
            assert!(keys.contains_key(key), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("matrix.toml");
        fs::write(&file, "[defaults]\ntimeout = \"soon\"\n").unwrap();
        let text = Matrix::read(&file, folder.path()).unwrap_err().to_string();
        assert!(text.contains("line 2"), "{text}");
        assert!(text.contains("matrix.toml"), "{text}");
    }
}
