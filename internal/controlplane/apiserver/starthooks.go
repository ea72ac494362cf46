package apiserver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/sirupsen/logrus"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

// hookRetry is the pause before a start hook of upstream's is called again.
const hookRetry = time.Second

// limitedHooks are the start hooks of upstream's that fail after a time of their own, and with that
// end the process. Slow machines need longer. The others have no limit, or ignore it.
//
// again says that a failed hook leaves nothing running, so that it can be called again. Otherwise
// what it has started goes on, and the hook only stops waiting for it.
//
//upstream:relies-on k8s.io/kubernetes/pkg/registry/flowcontrol/rest/storage_flowcontrol.go bootstrapConfigurationEnsurer.ensureAPFBootstrapConfiguration
//upstream:relies-on k8s.io/kubernetes/pkg/registry/core/rest/storage_core.go legacyProvider.PostStartHook
var limitedHooks = map[string]struct{ again bool }{
	"priority-and-fairness-config-producer": {again: true},
	// Until its first pass ends, a Service may get an error instead of a node port.
	"start-service-ip-repair-controllers": {},
}

// lengthenHooks makes upstream's limitedHooks of a server take as long as they need.
func lengthenHooks(server *genericapiserver.GenericAPIServer, log *logrus.Entry) error {
	hooks, err := hooksOf(server)
	if err != nil {
		return err
	}
	for name, limited := range limitedHooks {
		key := reflect.ValueOf(name)
		found := hooks.MapIndex(key)
		if !found.IsValid() {
			continue // the user has switched its API off
		}
		entry := reflect.New(found.Type()).Elem()
		entry.Set(found)
		hook := hookOf(entry)
		if hook == nil {
			return fmt.Errorf("find start hook: a %s has no hook", found.Type())
		}
		*hook = lengthened(name, *hook, limited.again, log)
		hooks.SetMapIndex(key, entry)
	}
	return nil
}

// hooksOf returns server.postStartHooks.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/genericapiserver.go GenericAPIServer
//upstream:relies-on k8s.io/apiserver/pkg/server/hooks.go postStartHookEntry
func hooksOf(server *genericapiserver.GenericAPIServer) (reflect.Value, error) {
	field := reflect.ValueOf(server).Elem().FieldByName("postStartHooks")
	if field.Kind() != reflect.Map || field.Type().Key().Kind() != reflect.String {
		return field, errors.New("find start hooks: upstream's server has no postStartHooks")
	}
	return reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem(), nil
}

// hookOf returns a pointer to entry.hook, or nil if there is no such field.
func hookOf(entry reflect.Value) *genericapiserver.PostStartHookFunc {
	field := entry.FieldByName("hook")
	if !field.IsValid() || field.Type() != reflect.TypeFor[genericapiserver.PostStartHookFunc]() {
		return nil
	}
	return (*genericapiserver.PostStartHookFunc)(field.Addr().UnsafePointer())
}

// lengthened returns a hook that does what hook does, and does not fail. See limitedHooks for again.
func lengthened(name string, hook genericapiserver.PostStartHookFunc, again bool, log *logrus.Entry) genericapiserver.PostStartHookFunc {
	calling := loop.Loop{Log: log, First: hookRetry, Last: hookRetry, Meanwhile: "the API server is not ready"}
	return func(ctx genericapiserver.PostStartHookContext) error {
		_ = calling.Until(ctx, func(context.Context) error {
			err := hook(ctx)
			if err != nil && ctx.Err() == nil && !again {
				log.Warnf("The start of the API server does not wait any longer for %s, which goes on. This machine or its datastore is slow: %v", name, err)
				return nil
			}
			if err != nil {
				return fmt.Errorf("this machine or its datastore is slow: %s: %w", name, err)
			}
			return nil
		})
		return nil
	}
}
