package announce

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// This Lease is also named in /manifests/rbac.yaml.
const (
	vipNamespace = "kube-system"
	vipLease     = "kedge-vip"
)

// NewVIP returns the component that makes one of the servers answer at the address of the
// control plane. It is ready at once. client calls as system:kedge:vip. identity is unique
// to this server and stays the same after a restart.
func NewVIP(address netip.Addr, client *rest.Config, identity string) component.Component {
	log := logrus.WithField("component", "vip")
	return component.Func("vip", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		ready()
		runVIP(ctx, api, Config{
			Address: address, Leases: api.CoordinationV1().Leases(vipNamespace), Identity: identity, Host: Linux{}, Log: log,
		})
		return nil
	})
}

// runVIP contends for the Lease, which it makes if there is none, until ctx ends.
func runVIP(ctx context.Context, api kubernetes.Interface, cfg Config) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: vipNamespace, Name: vipLease}}
	for ensure(ctx, cfg, lease) != nil {
		if loop.Sleep(ctx, time.Second) != nil {
			return
		}
	}
	contender := New(cfg)
	informer := coordinationinformers.NewFilteredLeaseInformer(api, vipNamespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + vipLease
	})
	see := func(object any) {
		if seen, is := object.(*coordinationv1.Lease); is {
			contender.See(seen, 0)
		}
	}
	// AddEventHandler fails only on an informer that has stopped.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, object any) { see(object) },
		DeleteFunc: func(any) {
			if ctx.Err() == nil {
				_ = ensure(ctx, cfg, lease) // The next server that starts would make it, too.
			}
		},
	})
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(watching)
	}()
	contender.Run(ctx)
	stop()
	<-done
}

// ensure makes the Lease if it does not exist.
func ensure(ctx context.Context, cfg Config, lease *coordinationv1.Lease) error {
	_, err := cfg.Leases.Create(ctx, lease, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil && ctx.Err() == nil {
		cfg.Log.Debugf("Cannot make the Lease %s: %v", lease.Name, err)
	}
	return err
}
