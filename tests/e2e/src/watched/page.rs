//! The status page in a browser.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::{CALLED, PROBE, VM, Watched, on, request};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, pass_with, wrong};

pub const SHOWN: Test = Test {
    name: "a_browser_shows_the_vms_their_probes_with_rates_and_their_stops",
    ids: &["SV06"],
    needs: Needs::Host,
    run: shown,
};

/// Debian's Chromium without a window, which deploy/setup.sh installs.
const BROWSER: &str = "chromium-headless-shell";
/// Milliseconds by the page's own clock until its content is read: enough for two requests.
const PAGE_TIME_MS: u32 = 3000;
/// The environment variable with a folder where pictures of the page are left.
const PICTURES: &str = "VMPROBE_PAGE_PICTURES";

/// Runs the browser on a page; returns what it writes.
async fn browse(url: &str, profile: &Path, arguments: &[String]) -> Result<String, Failure> {
    let output = Command::new(BROWSER)
        // Its sandbox needs user namespaces, or root, and containers have neither.
        .args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .arg("--window-size=1280,900")
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--virtual-time-budget={PAGE_TIME_MS}"))
        .args(arguments)
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(Failure::io(format!(
            "start {BROWSER} (deploy/setup.sh installs it)"
        )))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    check!(output.status.success(), "{BROWSER} failed: {errors}");
    for refused in ["Content Security Policy", "Uncaught"] {
        check!(!errors.contains(refused), "the page has an error: {errors}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The text of an element with this identity, as far as it has no other elements in it.
fn text_of<'a>(page: &'a str, id: &str) -> Result<&'a str, Failure> {
    let begin = format!("id=\"{id}\"");
    let rest = page
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once('>'));
    let text = rest.and_then(|(_, rest)| rest.split('<').next());
    text.ok_or_else(|| wrong!("the page has no {id}: {page}"))
}

impl Watched {
    /// Adds more VMs, and names that people give.
    async fn picturesque(&mut self) -> Result<(), Failure> {
        let names = vec![PROBE.to_owned()];
        self.client.unregister_probes(VM, Vec::new(), names).await?;
        let probes = vec![on(CALLED, "requests")];
        self.client.register_probes(VM, probes).await?;
        for name in ["db-1.example", "db-2.example"] {
            self.client.create_vm(request(name)?).await?;
        }
        self.client.start_vm("db-1.example").await?;
        self.call(5000).await
    }
}

fn shown(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut watched = Watched::start(cx).await?;
        watched.call(1234).await?;
        watched.client.disarm_probes(VM).await?;
        watched.client.arm_probes(VM).await?;
        // Rates are computed between two requests.
        let path = format!("/api/status?vm={VM}");
        loop {
            let status = watched.get(&path).await?;
            let status: Value = serde_json::from_str(&status).map_err(|e| wrong!("{e}"))?;
            if status["vm"]["probes"][0]["hits_per_second"].as_f64() > Some(0.0) {
                break;
            }
        }
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let url = format!("http://{}/#vm={VM}", watched.metrics);
        let arguments = ["--enable-logging=stderr", "--dump-dom"].map(str::to_owned);
        let page = browse(&url, folder.path(), &arguments).await?;
        for part in [
            format!("<a href=\"#vm={VM}\">{VM}</a>"),
            "<td class=\"name running\" title=\"running\">running</td>".to_owned(),
            // Shown as a text, not as an element.
            PROBE
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;"),
            "<td class=\"number\">1,234</td>".to_owned(),
            "<line class=\"stop\"".to_owned(),
        ] {
            check!(page.contains(&part), "{part} is missing in {page}");
        }
        check!(
            !page.contains("<b id"),
            "a probe's name has become an element"
        );
        check!(text_of(&page, "connection")? == "live", "{page}");
        let stops = text_of(&page, "stops-note")?.to_owned();
        check!(stops.contains("the longest"), "{stops}");
        // The busiest probe comes first, and has a rate.
        let rows = page
            .split_once("id=\"probes\"")
            .map_or("", |(_, rows)| rows);
        let first = rows.split("<tr>").nth(2).unwrap_or_default();
        let rate = first.split("class=\"number\">").nth(1).unwrap_or_default();
        let rate = rate.split('<').next().unwrap_or_default();
        check!(
            first.contains("busy") && rate.starts_with(|c: char| ('1'..='9').contains(&c)),
            "the first probe is {first}"
        );
        watched.picturesque().await?;
        let pictures = std::env::var_os(PICTURES);
        let pictures = pictures.as_deref().map_or(folder.path(), Path::new);
        for (theme, flags) in [
            ("light", None),
            ("dark", Some("--blink-settings=preferredColorScheme=0")),
        ] {
            let picture = pictures.join(format!("status-{theme}.png"));
            let mut arguments = vec![format!("--screenshot={}", picture.display())];
            arguments.extend(flags.map(str::to_owned));
            browse(&url, folder.path(), &arguments).await?;
            let size = std::fs::metadata(&picture).map_or(0, |file| file.len());
            check!(size > 10_000, "the picture has {size} bytes");
        }
        pass_with(format!("{rate} hits in a second, {stops}"))
    })
}
