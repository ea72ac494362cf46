// Package namequeue is the queue of a small controller: the names of objects that it has
// to look at. The controllers of HelmCharts, of local storage and of a node's volumes use
// it.
package namequeue

import (
	"context"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Queue has each name once.
type Queue struct {
	workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// New makes a queue. After a failure a name comes again after first, and then after twice
// as long each time, up to last. The queue's metrics have its name.
func New(name string, first, last time.Duration) Queue {
	return Queue{workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](first, last),
		workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Name: name})}
}

// AddObject adds the name of an object that an informer's handler got. The object may be
// a cache.DeletedFinalStateUnknown.
func (q Queue) AddObject(object any) {
	if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
		q.Add(name)
	}
}

// Work calls sync for each name until ShutDown. If sync fails, Work calls failed and adds
// the name again, except after the end of ctx. Several goroutines may call Work: no two
// get the same name at once.
func (q Queue) Work(ctx context.Context, sync func(context.Context, cache.ObjectName) error, failed func(cache.ObjectName, error)) {
	for {
		name, ended := q.Get()
		if ended {
			return
		}
		if err := sync(ctx, name); err != nil && ctx.Err() == nil {
			failed(name, err)
			q.AddRateLimited(name)
		} else {
			q.Forget(name)
		}
		q.Done(name)
	}
}
