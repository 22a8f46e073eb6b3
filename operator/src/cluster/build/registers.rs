//! The registers that servers share: the objects, and the rights to change them.

use std::collections::BTreeSet;

use percolator_api::ClaimRetention;
use serde_json::{Value, json};

use super::super::names::{self, REGISTER_LABEL, Role};
use super::super::object::{Kind, Object, RBAC};
use super::super::observed::Observed;
use super::super::registers;
use super::Builder;

impl Builder<'_> {
    /// Whether pods of this role use registers.
    pub(super) fn has_register(&self, role: Role) -> bool {
        self.plan(role).has_register
    }

    /// The registers and the rights to change them; empty if the role's server is alone.
    pub(super) fn registers(&self, role: Role, observed: &Observed) -> Vec<Object> {
        if !self.has_register(role) {
            return Vec::new();
        }
        let set = role.set(self.name);
        let labels = || names::role_labels(self.name, role);
        let object = |kind, body| self.object(kind, &set, labels(), body);
        let asked = role.asked(&self.cluster.spec);
        let own_account = asked.pod.service_account_name.is_none();
        let account = own_account.then(|| {
            object(
                Kind::ServiceAccount,
                json!({"automountServiceAccountToken": false}),
            )
        });
        let names = names::registers(self.name, role);
        // `create` can't be restricted to a name: the operator makes the objects, and servers fill them.
        let rules = json!({"rules": [{
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": names,
            "verbs": ["get", "patch"],
        }]});
        let binding = json!({
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": set},
            "subjects": self.subjects(role, observed),
        });
        let registers = names.iter().map(|name| self.register(role, name));
        account
            .into_iter()
            .chain(registers)
            .chain([
                object(Kind::Role, rules),
                object(Kind::RoleBinding, binding),
            ])
            .collect()
    }

    /// Its value is the servers' own, and isn't asked for here. Like the volumes it outlives the cluster's resource, unless
    /// these go with it: without it the oracles of these volumes would grant nothing any more, and the masters would have
    /// no state.
    fn register(&self, role: Role, name: &str) -> Object {
        let mut labels = names::role_labels(self.name, role);
        labels[REGISTER_LABEL] = json!(role.singular());
        match self.cluster.spec.claims.when_deleted {
            ClaimRetention::Retain => Object::unowned(Kind::ConfigMap, name, labels, json!({})),
            ClaimRetention::Delete => self.object(Kind::ConfigMap, name, labels, json!({})),
        }
    }

    /// The account of the pods to come, and those of the pods that are there.
    fn subjects(&self, role: Role, observed: &Observed) -> Vec<Value> {
        let account = self.account(role);
        let mut accounts: BTreeSet<&str> = registers::accounts_in_use(observed, role).collect();
        accounts.insert(&account);
        let subject =
            |name| json!({"kind": "ServiceAccount", "name": name, "namespace": self.namespace});
        accounts.into_iter().map(subject).collect()
    }
}
