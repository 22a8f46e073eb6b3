//! What a local cluster's proxy takes from the manifest.

use percolator_api::{Duration, Proxy, Spec};

/// The arguments of its program, by the mapping that pods use.
pub(crate) fn to_args(spec: &Spec) -> Vec<String> {
    let proxy = Proxy {
        // The servers stop at the same time: there is nothing to wait for.
        grace: Duration::from_millis(0),
        ..spec.proxy.clone().unwrap_or_default()
    };
    proxy.to_args()
}

/// The fields with another value in `asked`, of those that a proxy reads when it starts.
pub(crate) fn differences(ours: &Spec, asked: &Spec) -> Vec<&'static str> {
    let [ours, asked] = [ours, asked].map(|spec| spec.proxy.clone().unwrap_or_default());
    named([
        ("spec.proxy.idleMax", ours.idle_max != asked.idle_max),
        (
            "spec.proxy.sessionMax",
            ours.session_max != asked.session_max,
        ),
    ])
}

/// The fields that are set and that have an effect on pods alone.
pub(crate) fn fields_without_effect(proxy: &Proxy) -> Vec<&'static str> {
    let default = Proxy::default();
    named([
        ("spec.proxy.replicas", proxy.replicas != default.replicas),
        ("spec.proxy.grace", proxy.grace != default.grace),
        ("spec.proxy.service", proxy.service != default.service),
        ("spec.proxy.pod", proxy.pod != default.pod),
    ])
}

fn named<const N: usize>(fields: [(&'static str, bool); N]) -> Vec<&'static str> {
    let fields = fields.into_iter().filter(|(_, is_named)| *is_named);
    fields.map(|(field, _)| field).collect()
}

#[cfg(test)]
mod tests {
    use percolator_api::PercolatorCluster;

    use super::*;

    fn with_proxy(fields: &str) -> Spec {
        let manifest = format!(
            "{{apiVersion: percolator.dev/v1alpha1, kind: PercolatorCluster, metadata: {{name: local}}, \
             spec: {{proxy: {{{fields}}}}}}}"
        );
        let manifest = PercolatorCluster::from_yaml(&manifest);
        manifest.expect("a manifest").spec
    }

    #[test]
    fn the_proxy_has_the_limits_of_the_manifest() {
        let defaults = [
            "--idle-max=30000ms",
            "--session-max=300000ms",
            "--grace=0ms",
        ];
        assert_eq!(to_args(&Spec::default()), defaults);
        let limited = with_proxy("idleMax: 2s, sessionMax: 1m, grace: 5s");
        let limits = ["--idle-max=2000ms", "--session-max=60000ms", "--grace=0ms"];
        assert_eq!(to_args(&limited), limits);
    }

    #[test]
    fn other_limits_count_after_a_restart() {
        let default = Spec::default();
        let both = ["spec.proxy.idleMax", "spec.proxy.sessionMax"];
        let other = with_proxy("idleMax: 2s, sessionMax: 1m");
        assert_eq!(differences(&default, &other), both);
        assert_eq!(differences(&other, &default), both);
        let same = with_proxy("idleMax: 30s, replicas: 2");
        assert!(differences(&default, &same).is_empty());
    }

    #[test]
    fn fields_of_pods_have_no_effect() {
        let fields = |text| with_proxy(text).proxy.as_ref().map(fields_without_effect);
        assert_eq!(fields("idleMax: 2s, sessionMax: 1m"), Some(Vec::new()));
        let all =
            "replicas: 2, grace: 5s, service: {type: NodePort}, pod: {nodeSelector: {disk: ssd}}";
        assert_eq!(
            fields(all),
            Some(vec![
                "spec.proxy.replicas",
                "spec.proxy.grace",
                "spec.proxy.service",
                "spec.proxy.pod",
            ])
        );
    }
}
