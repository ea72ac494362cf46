// Follows k8s.io/kubernetes v1.37.2, pkg/registry/scheduling/rest/storage_scheduling.go.

package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	schedulingapi "k8s.io/kubernetes/pkg/apis/scheduling/v1"
)

// priorityClasses returns the tasks that create upstream's priority classes, as
// AddSystemPriorityClasses does.
//
//upstream:follows k8s.io/kubernetes/pkg/registry/scheduling/rest/storage_scheduling.go AddSystemPriorityClasses
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
