//! VMs that the server's owner has declared in a file: the server makes them when it starts, with their probes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use rustix::process::geteuid;
use thiserror::Error;
use toml::{Table, Value};
use vmprobe_proto::v1;

use super::calls;
use super::vms::Vms;
use crate::access::Account;
use crate::files::GrantedFiles;

/// The message whose fields a declaration has.
const REQUEST: &str = "vmprobe.v1.CreateVmRequest";
/// The key of the declarations.
const VM: &str = "vm";
/// The field whose items are texts in a declaration, and not messages.
const PROBES: &str = "probes";

/// Why declarations can't be used.
#[derive(Debug, Error)]
pub enum DeclaredError {
    /// The file can't be read.
    #[error("can't read the VMs of {file}: {cause}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// The file isn't TOML, or has something else than VMs.
    #[error("{file}: {reason}")]
    Syntax {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A VM's declaration is wrong.
    #[error("{file}: VM {vm}: {reason}")]
    Vm {
        /// The file.
        file: PathBuf,
        /// Its name, or its place in the file, from 1.
        vm: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Reads the VMs of a file. Each `[[vm]]` has the fields of `CreateVmRequest`, by their names in the protocol. Its
/// probes are texts.
///
/// # Errors
/// See [`DeclaredError`].
pub fn read(file: &Path) -> Result<Vec<v1::CreateVmRequest>, DeclaredError> {
    let text = fs::read_to_string(file).map_err(|cause| DeclaredError::Read {
        file: file.to_owned(),
        cause,
    })?;
    let syntax = |reason: String| DeclaredError::Syntax {
        file: file.to_owned(),
        reason,
    };
    let mut table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| syntax(error.to_string()))?;
    let vms = match table.remove(VM) {
        Some(Value::Array(vms)) => vms,
        None => Vec::new(),
        Some(_) => return Err(syntax("each VM begins with [[vm]]".to_owned())),
    };
    if let Some(other) = table.keys().next() {
        return Err(syntax(format!(
            "`{other}` is no VM: each begins with [[vm]]"
        )));
    }
    let pool = DescriptorPool::decode(v1::FILE_DESCRIPTOR_SET).map_err(|error| {
        syntax(format!(
            "the server's description of itself is broken: {error}"
        ))
    })?;
    let descriptor = pool.get_message_by_name(REQUEST);
    let descriptor = descriptor.ok_or_else(|| syntax(format!("there is no {REQUEST}")))?;
    let mut requests: Vec<v1::CreateVmRequest> = Vec::new();
    for (number, vm) in (1..).zip(vms) {
        let name = vm.get("name").and_then(Value::as_str);
        let name = name.map_or_else(|| format!("number {number}"), |name| format!("`{name}`"));
        let wrong = |reason: String| DeclaredError::Vm {
            file: file.to_owned(),
            vm: name.clone(),
            reason,
        };
        let request = request(vm, &descriptor).map_err(wrong)?;
        if request.name.is_empty() {
            return Err(wrong("it has no name".to_owned()));
        }
        if requests.iter().any(|other| other.name == request.name) {
            return Err(wrong("another one has this name".to_owned()));
        }
        requests.push(request);
    }
    Ok(requests)
}

fn request(vm: Value, descriptor: &MessageDescriptor) -> Result<v1::CreateVmRequest, String> {
    let Value::Table(mut fields) = vm else {
        return Err("it is no table".to_owned());
    };
    let mut probes = Vec::new();
    let texts = match fields.remove(PROBES) {
        None => Vec::new(),
        Some(Value::Array(texts)) => texts,
        Some(_) => return Err("`probes` is a list of texts".to_owned()),
    };
    for text in texts {
        let text = text
            .as_str()
            .ok_or("a probe is a text, such as \"p vfs_read\"")?;
        let probe = vmprobe_spec::parse(text).map_err(|error| format!("`{text}`: {error}"))?;
        probes.push(probe);
    }
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let fields = Value::Table(fields);
    let message = DynamicMessage::deserialize_with_options(descriptor.clone(), fields, &options);
    let message = message.map_err(|error| error.to_string().trim_end().to_owned())?;
    let request: v1::CreateVmRequest = message.transcode_to().map_err(|error| error.to_string())?;
    Ok(v1::CreateVmRequest { probes, ..request })
}

/// Makes the declared VMs, as many at a time as the limits allow. A VM that can't be made is logged.
pub fn make(vms: &Arc<Vms>, declared: Vec<v1::CreateVmRequest>) {
    for request in declared {
        let vms = Arc::clone(vms);
        tokio::spawn(async move {
            let name = request.name.clone();
            let account = Account::User(geteuid().as_raw());
            match calls::make(vms, account, GrantedFiles::any(), request).await {
                Ok(created) => {
                    let count = created.probes.len();
                    tracing::info!(vm = name, "made as declared, with {count} probes");
                }
                Err(status) => {
                    let why = status.message();
                    tracing::error!(vm = name, "can't be made as declared: {why}");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &str) -> Result<Vec<v1::CreateVmRequest>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let path = file.path().display().to_string();
        read(file.path()).map_err(|error| error.to_string().replace(&path, "FILE"))
    }

    #[test]
    fn a_declaration_has_the_fields_of_the_request() {
        let vms = declared(
            r#"
            [[vm]]
            name = "web"
            kernel = "/boot/vmlinuz"
            memory_mib = 1024
            vcpus = 2
            boot = "BOOT_METHOD_BZIMAGE"
            probes = ["p:open do_sys_openat2 name=$arg2:ustring", "r vfs_read"]

            [[vm.devices.disks]]
            path = "/srv/web.qcow2"
            format = "DISK_FORMAT_QCOW2"

            [[vm]]
            name = "db"
            kernel = "image:linux"
            "#,
        );
        let vms = vms.unwrap();
        let web = &vms[0];
        assert_eq!((&*web.name, web.memory_mib, web.vcpus), ("web", 1024, 2));
        assert_eq!(web.boot(), v1::BootMethod::Bzimage);
        assert_eq!(web.probes[0].arguments, ["name=$arg2:ustring"]);
        assert_eq!(web.probes.len(), 2);
        let disks = &web.devices.as_ref().unwrap().disks;
        assert_eq!(
            (&*disks[0].path, disks[0].format()),
            ("/srv/web.qcow2", v1::DiskFormat::Qcow2)
        );
        assert_eq!(vms[1].kernel, "image:linux");
        assert_eq!(declared(""), Ok(vec![]));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_vm() {
        for (text, expected) in [
            ("[[vm]]\nkernel = 'k'", "FILE: VM number 1: it has no name"),
            (
                "[[vm]]\nname = 'a'\n[[vm]]\nname = 'a'",
                "FILE: VM `a`: another one has this name",
            ),
            ("[[vm]]\nname = 'a'\nkernal = 'k'", "FILE: VM `a`: "),
            ("[[vm]]\nname = 'a'\nvcpus = 'two'", "FILE: VM `a`: "),
            (
                "[[vm]]\nname = 'a'\nprobes = ['p:']",
                "FILE: VM `a`: `p:`: ",
            ),
            (
                "[[vm]]\nname = 'a'\nprobes = [7]",
                "FILE: VM `a`: a probe is a text",
            ),
            ("vm = 7", "FILE: each VM begins with [[vm]]"),
            ("[web]\nname = 'a'", "FILE: `web` is no VM"),
            ("[[vm]", "FILE: "),
        ] {
            let refused = declared(text).unwrap_err();
            assert!(refused.starts_with(expected), "{text}: {refused}");
        }
        let refused = declared("[[vm]]\nname = 'a'\nkernal = 'k'").unwrap_err();
        assert!(refused.contains("kernal"), "{refused}");
    }
}
