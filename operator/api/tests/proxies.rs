//! Proxies in manifests: what no field says of them is said by variables.

use percolator_api::PercolatorCluster;

/// A cluster with a proxy that has this variable.
fn with_variable(name: &str) -> String {
    format!(
        "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {{name: demo}}\nspec:\n  proxy:\n    \
         pod: {{env: [{{name: {name}, value: \"1\"}}]}}\n"
    )
}

/// As docs/runbooks/PercolatorProxyRefuses.md says.
#[test]
fn bounds_of_proxies_are_set_by_their_variables() {
    let runbook = include_str!("../../../docs/runbooks/PercolatorProxyRefuses.md");
    let named = runbook
        .split('`')
        .filter(|it| it.starts_with("PERCOLATOR_"));
    let named: Vec<&str> = named.collect();
    assert!(!named.is_empty());
    for name in named.into_iter().chain(["PERCOLATOR_PROXY_BYTES_MAX"]) {
        PercolatorCluster::from_yaml(&with_variable(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let own = PercolatorCluster::from_yaml(&with_variable("PERCOLATOR_PROXY_MASTER"));
    let refused = own.expect_err("it is the operator's").to_string();
    assert!(refused.contains("the operator's own"), "{refused}");
    // Of a server it says nothing.
    let tablets = with_variable("PERCOLATOR_PROXY_BYTES_MAX").replace("proxy:", "tablets:");
    assert!(PercolatorCluster::from_yaml(&tablets).is_err());
}
