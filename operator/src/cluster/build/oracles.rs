//! What oracles need that share a register: the object itself, and the right to change it.

use std::collections::BTreeSet;

use percolator_api::ClaimRetention;
use serde_json::{Value, json};

use super::super::names::{self, REGISTER_LABEL, Role};
use super::super::object::{Kind, Object, RBAC};
use super::super::observed::Observed;
use super::super::oracles;
use super::Builder;

impl Builder<'_> {
    /// Whether pods of this role use the register.
    pub(super) fn has_register(&self, role: Role) -> bool {
        role == Role::Oracle && self.oracles.has_register
    }

    /// The register and who may change it; nothing where an oracle is alone.
    pub(super) fn register(&self, observed: &Observed) -> Vec<Object> {
        if !self.oracles.has_register {
            return Vec::new();
        }
        let oracle = Role::Oracle.set(self.name);
        let labels = || names::role_labels(self.name, Role::Oracle);
        let object = |kind, body| self.object(kind, &oracle, labels(), body);
        let own_account = self.cluster.spec.oracle.pod.service_account_name.is_none();
        let account = own_account.then(|| {
            object(
                Kind::ServiceAccount,
                json!({"automountServiceAccountToken": false}),
            )
        });
        // `create` can't be restricted to a name: the operator makes the object, and oracles fill it.
        let rules = json!({"rules": [{
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [names::register(self.name)],
            "verbs": ["get", "patch"],
        }]});
        let binding = json!({
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": oracle},
            "subjects": self.subjects(observed),
        });
        account
            .into_iter()
            .chain([
                self.register_object(),
                object(Kind::Role, rules),
                object(Kind::RoleBinding, binding),
            ])
            .collect()
    }

    /// Its value is the oracles' own, and isn't asked for here. Like the volumes it outlives the cluster's resource, unless
    /// these go with it: without it the oracles of these volumes would grant nothing any more.
    fn register_object(&self) -> Object {
        let name = names::register(self.name);
        let mut labels = names::role_labels(self.name, Role::Oracle);
        labels[REGISTER_LABEL] = json!("oracle");
        match self.cluster.spec.claims.when_deleted {
            ClaimRetention::Retain => Object::unowned(Kind::ConfigMap, &name, labels, json!({})),
            ClaimRetention::Delete => self.object(Kind::ConfigMap, &name, labels, json!({})),
        }
    }

    /// The account of the pods to come, and those of the pods that are there.
    fn subjects(&self, observed: &Observed) -> Vec<Value> {
        let account = self.account(Role::Oracle);
        let mut accounts: BTreeSet<&str> = oracles::accounts_in_use(observed).collect();
        accounts.insert(&account);
        let subject =
            |name| json!({"kind": "ServiceAccount", "name": name, "namespace": self.namespace});
        accounts.into_iter().map(subject).collect()
    }
}
