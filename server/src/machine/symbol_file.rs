//! The file with a kernel's symbols that a request may name.

use guest_kernel::symbols::GivenSymbols;
use tonic::{Code, Status};
use vmm::FileError;

use crate::files::GrantedFiles;
use crate::limits::Limits;
use crate::status;

/// The field of a request that names it.
const FIELD: &str = "symbols";

/// Reads it; none where no path is given. Blocks.
///
/// # Errors
/// The file may not be named, can't be read, or has no symbols.
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
        let (code, advice) = match error {
            FileError::TooLarge { .. } => (
                Code::ResourceExhausted,
                ": give a System.map, or start vmprobed with a larger --max-file",
            ),
            _ => (Code::InvalidArgument, ""),
        };
        status::with_field(
            code,
            FIELD,
            format!("the symbol file {path} can't be read: {error}{advice}"),
        )
    })?;
    let symbols = GivenSymbols::parse(&file);
    symbols
        .map(Some)
        .map_err(|error| status::invalid(FIELD, format!("{path}: {error}")))
}
