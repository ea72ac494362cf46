package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

const (
	// policyHook is the name of the start hook, as /readyz lists it.
	policyHook = "kedge/bootstrap-policy"
	// policyPatience is how long the hook tries, as upstream's hooks do, and
	// policyRetry how often.
	policyPatience = 30 * time.Second
	policyRetry    = 100 * time.Millisecond
	// policyWriters is how many objects are written at once: the datastore syncs the
	// disk once for all of them.
	policyWriters = 8
)

// replacePolicyHooks puts one start hook in place of the two of upstream's that create
// roles and priority classes. Upstream's hooks wait for a second first, and then write
// one object at a time (EnsureRBACPolicy and AddSystemPriorityClasses). They also
// migrate roles of Kubernetes before 1.9, which kedge's hook does not. rbac says
// whether the cluster has roles.
//
//upstream:relies-on k8s.io/kubernetes/pkg/registry/rbac/rest/storage_rbac.go RESTStorageProvider.PostStartHook PolicyData.EnsureRBACPolicy primeAggregatedClusterRoles primeSplitClusterRoleBindings
//upstream:relies-on k8s.io/kubernetes/pkg/registry/scheduling/rest/storage_scheduling.go RESTStorageProvider.PostStartHook
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

// ensurePolicy creates the objects that are missing, and adds rules and subjects that
// are missing in the others.
func ensurePolicy(ctx context.Context, client kubernetes.Interface, rbac bool) error {
	tasks := priorityClasses(ctx, client)
	if rbac {
		more, err := roles(ctx, client)
		if err != nil {
			return err
		}
		tasks = append(tasks, more...)
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

func clusterRoles() []rbacv1.ClusterRole {
	return slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles())
}

func clusterRoleBindings() []rbacv1.ClusterRoleBinding {
	return slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings())
}
