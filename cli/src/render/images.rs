//! Images that a server keeps.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use vmprobe_client::v1::Image;

use super::table;

/// Returns images, a line each: names, digest, size, time of the upload, the VMs that use it, and the owner if that is
/// wanted.
#[must_use]
pub fn image_list(images: &[Image], with_owners: bool) -> Vec<String> {
    let rows: Vec<Vec<String>> = images
        .iter()
        .map(|image| {
            let mut row = vec![
                image.names.join(","),
                format!("sha256-{}", image.sha256),
                size(image.size),
                time(image.uploaded_at),
                image.vms.join(","),
            ];
            row.extend(with_owners.then(|| image.owner.clone()));
            row
        })
        .collect();
    table(&rows, &[2])
}

/// Returns an image as JSON.
#[must_use]
pub fn image_json(image: &Image) -> Value {
    json!({
        "sha256": image.sha256,
        "size": image.size,
        "names": image.names,
        "uploaded_at": time(image.uploaded_at),
        "vms": image.vms,
        "owner": image.owner,
    })
}

/// Returns mebibytes, rounded up.
fn size(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn time(seconds: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    // A server may send any number; the text has years of four digits.
    const END: u64 = 253_402_300_800;
    let time = time.filter(|_| seconds < END);
    time.map_or_else(String::new, |time| {
        humantime::format_rfc3339_seconds(time).to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_listed_with_names_sizes_and_vms() {
        let image = |sha256: &str, size, names: &[&str], vms: &[&str]| Image {
            sha256: sha256.into(),
            size,
            names: names.iter().map(ToString::to_string).collect(),
            uploaded_at: 1_800_000_000,
            vms: vms.iter().map(ToString::to_string).collect(),
            owner: "client:alice".into(),
        };
        let images = [
            image("ab", 1, &[], &["a", "b"]),
            image("cd", 64 << 20, &["linux", "stable"], &[]),
        ];
        let expected = [
            "              sha256-ab   1 MiB  2027-01-15T08:00:00Z  a,b",
            "linux,stable  sha256-cd  64 MiB  2027-01-15T08:00:00Z",
        ];
        assert_eq!(image_list(&images, false), expected);
        let with_owners = image_list(&images, true);
        assert!(
            with_owners
                .iter()
                .all(|line| line.ends_with("  client:alice"))
        );
        let value = image_json(&images[1]);
        assert_eq!(value["names"][1], "stable");
        assert_eq!(value["size"], 64 << 20);
        assert_eq!(value["owner"], "client:alice");
        assert_eq!(time(u64::MAX), "");
    }
}
