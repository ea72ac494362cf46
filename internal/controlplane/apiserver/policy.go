package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
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
		createPolicy(hook, client, rbac)
		return nil
	})
}

// policyRetry is the pause after an attempt that fails. It doubles up to 5 s.
var policyRetry = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: 10}

// createPolicy calls ensurePolicy until that succeeds or ctx ends. Upstream's hooks end the
// process after 30 s. A slow machine needs longer, and would begin again each time.
func createPolicy(ctx context.Context, client kubernetes.Interface, rbac bool) {
	began := time.Now()
	// It fails only if ctx ends.
	_ = policyRetry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := ensurePolicy(ctx, client, rbac)
		// The first attempts may fail while the server starts.
		if err != nil && ctx.Err() == nil && time.Since(began) > time.Second {
			logrus.WithField("component", "apiserver").Warnf("Cannot create all of Kubernetes's own roles and priority classes yet. The server is not ready without them. It tries again: %v", err)
		}
		return err == nil, nil
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
