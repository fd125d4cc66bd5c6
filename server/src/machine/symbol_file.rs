//! The file with a kernel's symbols that a request may name.

use guest_kernel::symbols::GivenSymbols;
use tonic::Status;
use vmm::FileError;

use crate::files::GrantedFiles;
use crate::limits::Limits;
use crate::status;

/// The field of a request with the file's path.
const FIELD: &str = "symbols";

/// Reads the file, or returns `None` where no path is given. Blocks.
///
/// # Errors
/// The request may not name that file, or it can't be read, or has no symbols.
pub(super) fn read(
    path: &str,
    granted: &GrantedFiles,
    limits: &Limits,
) -> Result<Option<GivenSymbols>, Status> {
    if path.is_empty() {
        return Ok(None);
    }
    let most = limits.file_mib.saturating_mul(1 << 20);
    let file = granted.file(FIELD, path)?;
    let file = vmm::read_file(&file, most).map_err(|error| {
        let why = format!("the symbol file {path} can't be read: {error}");
        match error {
            FileError::TooLarge { .. } => {
                let advice = "give a System.map, or start vmprobed with a larger --max-file";
                status::exhausted_by(FIELD, "--max-file", format!("{why}: {advice}"))
            }
            _ => status::invalid(FIELD, why),
        }
    })?;
    let symbols = GivenSymbols::parse(&file);
    symbols
        .map(Some)
        .map_err(|error| status::invalid(FIELD, format!("{path}: {error}")))
}
