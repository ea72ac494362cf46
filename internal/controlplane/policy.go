package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	schedulingapi "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

const (
	// policyHook is the name of the start hook, as /readyz lists it.
	policyHook = "kedge/bootstrap-policy"
	// policyPatience and policyRetry are how long it is tried, and how often.
	policyPatience = 30 * time.Second
	policyRetry    = 100 * time.Millisecond
	// policyWriters write side by side: the datastore syncs the disk once for
	// all who wait.
	policyWriters = 8
)

// replacePolicyHooks puts a hook of kedge's in place of two of upstream's, by
// which an API server begins with roles and priority classes: those wait for a
// second first, and then go one by one (pkg/registry/rbac/rest/storage_rbac.go,
// EnsureRBACPolicy, and pkg/registry/scheduling/rest, AddSystemPriorityClasses).
// What they do for clusters of Kubernetes before 1.9 is left out. rbac is
// whether there are roles.
func replacePolicyHooks(config *genericapiserver.Config, rbac bool) error {
	config.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName, schedulingrest.PostStartHookName)
	return config.AddPostStartHook(policyHook, func(hook genericapiserver.PostStartHookContext) error {
		client, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
		if err != nil {
			return fmt.Errorf("create client: %w", err)
		}
		var fault error
		err = wait.PollUntilContextTimeout(hook, policyRetry, policyPatience, true, func(ctx context.Context) (bool, error) {
			fault = ensurePolicy(ctx, client, rbac)
			return fault == nil, nil
		})
		if err == nil || hook.Err() != nil {
			return nil
		}
		return fmt.Errorf("make upstream's roles and priority classes: %w", errors.Join(err, fault))
	})
}

// ensurePolicy makes what is missing, and adds what is missing of what is there.
func ensurePolicy(ctx context.Context, client kubernetes.Interface, rbac bool) error {
	tasks := priorityClasses(ctx, client)
	if rbac {
		tasks = append(tasks, roles(client)...)
	}
	var mu sync.Mutex
	var faults []error
	workqueue.ParallelizeUntil(ctx, policyWriters, len(tasks), func(i int) {
		if err := tasks[i](); err != nil {
			mu.Lock()
			defer mu.Unlock()
			faults = append(faults, err)
		}
	})
	return errors.Join(append(faults, ctx.Err())...)
}

func priorityClasses(ctx context.Context, client kubernetes.Interface) (tasks []func() error) {
	api := client.SchedulingV1().PriorityClasses()
	for _, class := range schedulingapi.SystemPriorityClasses() {
		tasks = append(tasks, func() error {
			_, err := api.Get(ctx, class.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = api.Create(ctx, class, metav1.CreateOptions{})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("priority class %s: %w", class.Name, err)
			}
			return nil
		})
	}
	return tasks
}

// roles reconciles as upstream's hook does: users may add rules and subjects,
// and keep a role from being changed by an annotation.
func roles(client kubernetes.Interface) (tasks []func() error) {
	api, namespaces := client.RbacV1(), client.CoreV1().Namespaces()
	role := func(name string, owner reconciliation.RuleOwner, modifier reconciliation.RuleOwnerModifier) {
		tasks = append(tasks, func() error {
			_, err := (&reconciliation.ReconcileRoleOptions{Role: owner, Client: modifier, Confirm: true}).Run()
			if err != nil {
				return fmt.Errorf("role %s: %w", name, err)
			}
			return nil
		})
	}
	binding := func(name string, binding reconciliation.RoleBinding, modifier reconciliation.RoleBindingModifier) {
		tasks = append(tasks, func() error {
			_, err := (&reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: modifier, Confirm: true}).Run()
			if err != nil {
				return fmt.Errorf("role binding %s: %w", name, err)
			}
			return nil
		})
	}
	for _, r := range clusterRoles() {
		role(r.Name, reconciliation.ClusterRoleRuleOwner{ClusterRole: &r}, reconciliation.ClusterRoleModifier{Client: api.ClusterRoles()})
	}
	for _, b := range clusterRoleBindings() {
		binding(b.Name, reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &b},
			reconciliation.ClusterRoleBindingClientAdapter{Client: api.ClusterRoleBindings()})
	}
	for _, in := range bootstrappolicy.NamespaceRoles() {
		for _, r := range in {
			role(r.Name, reconciliation.RoleRuleOwner{Role: &r}, reconciliation.RoleModifier{Client: api, NamespaceClient: namespaces})
		}
	}
	for _, in := range bootstrappolicy.NamespaceRoleBindings() {
		for _, b := range in {
			binding(b.Name, reconciliation.RoleBindingAdapter{RoleBinding: &b},
				reconciliation.RoleBindingClientAdapter{Client: api, NamespaceClient: namespaces})
		}
	}
	return tasks
}

func clusterRoles() []rbacv1.ClusterRole {
	return slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles())
}

func clusterRoleBindings() []rbacv1.ClusterRoleBinding {
	return slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings())
}
