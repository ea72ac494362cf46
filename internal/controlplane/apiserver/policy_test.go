package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestEnsurePolicy begins with an empty cluster, and then with roles that a user
// has changed.
func TestEnsurePolicy(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset()
	if err := ensurePolicy(ctx, client, true); err != nil {
		t.Fatal(err)
	}
	roles, err := client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil || len(roles.Items) != len(clusterRoles()) {
		t.Errorf("%d cluster roles, want %d: %v", len(roles.Items), len(clusterRoles()), err)
	}
	bindings, err := client.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil || len(bindings.Items) != len(clusterRoleBindings()) {
		t.Errorf("%d cluster role bindings, want %d: %v", len(bindings.Items), len(clusterRoleBindings()), err)
	}
	for _, class := range []string{"system-node-critical", "system-cluster-critical"} {
		if _, err := client.SchedulingV1().PriorityClasses().Get(ctx, class, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := client.RbacV1().Roles("kube-system").Get(ctx, "extension-apiserver-authentication-reader", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	// A user's rule stays, and a missing rule comes back, except in a role that
	// the user protects.
	own := rbacv1.PolicyRule{APIGroups: []string{"example.com"}, Resources: []string{"things"}, Verbs: []string{"get"}}
	change := func(name, autoUpdate string) {
		role, err := client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		role.Rules = []rbacv1.PolicyRule{own}
		role.Annotations[rbacv1.AutoUpdateAnnotationKey] = autoUpdate
		if _, err := client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change("system:node", "true")
	change("system:kube-scheduler", "false")
	if err := ensurePolicy(ctx, client, true); err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string]bool{"system:node": true, "system:kube-scheduler": false} {
		role, err := client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		kept := false
		for _, rule := range role.Rules {
			kept = kept || len(rule.APIGroups) == 1 && rule.APIGroups[0] == "example.com"
		}
		if !kept || len(role.Rules) > 1 != more {
			t.Errorf("%s has %d rules, the user's among them: %v", name, len(role.Rules), kept)
		}
	}
}

// TestEnsurePolicyUnlisted has a role without the label by which the others are listed.
func TestEnsurePolicyUnlisted(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:node"}})
	if err := ensurePolicy(ctx, client, true); err != nil {
		t.Fatal(err)
	}
	role, err := client.RbacV1().ClusterRoles().Get(ctx, "system:node", metav1.GetOptions{})
	if err != nil || len(role.Rules) == 0 {
		t.Errorf("got %v, %v, want the rules that were missing", role, err)
	}
	gets := 0
	client.ClearActions()
	if err := ensurePolicy(ctx, client, true); err != nil {
		t.Fatal(err)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() == "get" && action.GetNamespace() == "" && action.GetResource().Group == rbacv1.GroupName {
			gets++
		}
		if action.GetVerb() == "create" && action.GetResource().Resource != "namespaces" || action.GetVerb() == "update" {
			t.Errorf("got %v, want nothing written the second time", action)
		}
	}
	if gets > 1 {
		t.Errorf("got %d objects one by one, want them from a list", gets)
	}
}

// TestEnsurePolicyWithoutRBAC wants only priority classes, and an error that
// names what fails.
func TestEnsurePolicyWithoutRBAC(t *testing.T) {
	client := fake.NewClientset()
	if err := ensurePolicy(t.Context(), client, false); err != nil {
		t.Fatal(err)
	}
	for _, action := range client.Actions() {
		if action.GetResource().Group != "scheduling.k8s.io" {
			t.Errorf("without RBAC: got %v, want only writes of priority classes", action)
		}
	}
	client.PrependReactor("get", "priorityclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("not now")
	})
	if err := ensurePolicy(t.Context(), client, false); err == nil {
		t.Error("no error of a server that cannot answer")
	}
}

// TestCreatePolicySlowly has a server that cannot answer all requests for ten minutes. A start must
// not end meanwhile.
func TestCreatePolicySlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, began := fake.NewClientset(), time.Now()
		client.PrependReactor("create", "clusterroles", func(clienttesting.Action) (bool, runtime.Object, error) {
			return time.Since(began) < 10*time.Minute, nil, apierrors.NewServiceUnavailable("not now")
		})
		createPolicy(t.Context(), client, true)
		roles, err := client.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(roles.Items) != len(clusterRoles()) {
			t.Errorf("%d cluster roles, want %d: %v", len(roles.Items), len(clusterRoles()), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		client.PrependReactor("get", "priorityclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("never")
		})
		if createPolicy(ctx, client, true); ctx.Err() == nil {
			t.Error("createPolicy has returned without all objects, and was not stopped")
		}
	})
}
