//! Validates the clients of the servers: the proxies, and the workers of observers.

use super::{
    OWN_LABELS, OWN_PREFIX, PROXY_POD, Problems, check_labels, check_patch, check_pod, is_host_name,
};
use crate::{Duration, Observer, Proxy};

const WORKERS_MAX: u32 = 100;
const OBSERVER_NAME_LEN_MAX: usize = 20;
const RUNS_MAX: u32 = 1_000;
const TIMEOUT_MIN: Duration = Duration::from_millis(1_000);
const TIMEOUT_MAX: Duration = Duration::from_millis(3_600_000);

pub(super) fn check_proxy(proxy: &Proxy, problems: &mut Problems) {
    let path = PROXY_POD;
    check_patch(path, &proxy.pod, Some("proxy"), problems);
    check_pod(path, &proxy.pod, problems);
    let own = |key: &str| {
        OWN_LABELS.contains(&key)
            || key.starts_with(OWN_PREFIX)
            || key == "app.kubernetes.io/component"
    };
    check_labels("spec.proxy.service", &proxy.service.labels, own, problems);
}

pub(super) fn check_observer(path: &str, observer: &Observer, problems: &mut Problems) {
    let mut add = |field: &str, message: String| problems.add(format!("{path}.{field}"), message);
    let name = &observer.name;
    if !is_host_name(name, OBSERVER_NAME_LEN_MAX) {
        let message = format!(
            "{name:?} must be 1 to {OBSERVER_NAME_LEN_MAX} of a-z, 0-9 and '-', starting and ending with a letter or digit"
        );
        add("name", message);
    }
    for (field, text) in [("table", &observer.table), ("column", &observer.column)] {
        if text.is_empty() {
            add(field, "must not be empty".into());
        }
    }
    match (&observer.exec, &observer.webhook, &observer.image) {
        (Some(_), Some(_), _) | (None, None, _) => {
            add("exec", "set either exec or webhook".into());
        }
        (Some(_), None, None) => add(
            "image",
            "exec needs one: an image of yours that has the program, and a shell".into(),
        ),
        (None, Some(_), Some(_)) => add("image", "is for exec alone: leave it out".into()),
        (Some(_), None, Some(_)) | (None, Some(_), None) => {}
    }
    if let Some(webhook) = &observer.webhook {
        let is_url = ["http://", "https://"]
            .iter()
            .any(|scheme| webhook.url.starts_with(scheme));
        if !is_url {
            add("webhook.url", "must begin with http:// or https://".into());
        }
    }
    for (field, count, least, most) in [
        ("replicas", observer.replicas.unwrap_or(0), 0, WORKERS_MAX),
        ("concurrency", observer.concurrency, 1, RUNS_MAX),
        ("attempts", observer.attempts, 1, RUNS_MAX),
    ] {
        if !(least..=most).contains(&count) {
            add(field, format!("{count} must be from {least} to {most}"));
        }
    }
    let timeout = observer.timeout;
    if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
        let message = format!("{timeout} must be from {TIMEOUT_MIN} to {TIMEOUT_MAX}");
        add("timeout", message);
    }
    check_pod(path, &observer.pod(), problems);
}
