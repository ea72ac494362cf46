package provision

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// TestNext checks that an idle node writes nothing, and never promises more than is available.
func TestNext(t *testing.T) {
	for name, test := range map[string]struct{ published, available, want int64 }{
		"first":              {0, 100 * gibibyte, 100 * gibibyte},
		"in steps":           {0, 100*gibibyte + 100*mebibyte, 100 * gibibyte},
		"a little less":      {99 * gibibyte, 99*gibibyte + 1, 99 * gibibyte},
		"a little more":      {99 * gibibyte, 99*gibibyte + 1000*mebibyte, 99 * gibibyte},
		"much more":          {99 * gibibyte, 100*gibibyte + 600*mebibyte, 100*gibibyte + 512*mebibyte},
		"less than promised": {100 * gibibyte, 100*gibibyte - 1, 99*gibibyte + 512*mebibyte},
		"none":               {96 * gibibyte, 0, 0},
		"still none":         {0, 0, 0},
	} {
		if got := next(test.published, test.available); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

// TestCapacities checks that the capacities for the scheduler are published once.
func TestCapacities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &fakeDriver{capacity: 100 * gibibyte}
		foreign := class("foreign", func(c *storagev1.StorageClass) { c.Provisioner = "x" })
		api := fake.NewClientset(class("local"), foreign)
		ctx, cancel := context.WithCancel(t.Context())
		room := newCapacities(Config{Node: "here", Driver: driver, Informers: objectcache.Own(api)}, api)
		done := make(chan error, 1)
		go func() { done <- room.Run(ctx, func() {}) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		published := func() []storagev1.CSIStorageCapacity {
			t.Helper()
			synctest.Wait()
			list, err := api.StorageV1().CSIStorageCapacities(localstorage.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return list.Items
		}
		time.Sleep(time.Second)
		if got := published(); len(got) != 0 {
			t.Errorf("before the node has registered: %v", got)
		}
		if _, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "1"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		got := published()
		if len(got) != 1 || got[0].StorageClassName != "local" || got[0].Capacity.Value() != 100*gibibyte ||
			got[0].NodeTopology.MatchLabels[localstorage.TopologyKey] != "here" || got[0].OwnerReferences[0].UID != "1" {
			t.Fatalf("published %v", got)
		}
		writes := func() (n int) {
			for _, action := range api.Actions() {
				if verb := action.GetVerb(); verb == "create" || verb == "update" || verb == "patch" || verb == "delete" {
					n++
				}
			}
			return n
		}
		before := writes()
		driver.mu.Lock()
		driver.capacity = 100*gibibyte + 900*mebibyte
		driver.mu.Unlock()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if after := writes(); after != before {
			t.Errorf("%d writes at rest", after-before)
		}
		driver.mu.Lock()
		driver.fault = status.Error(codes.FailedPrecondition, "use local-unlimited")
		driver.mu.Unlock()
		room.refresh()
		if got := published(); got[0].Capacity.Value() != 0 || got[0].Annotations[localstorage.WhyAnnotation] != "use local-unlimited" {
			t.Errorf("published %v", got)
		}
		// A claim waits, and the user corrects the fault.
		if _, err := api.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim("mine", ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		driver.mu.Lock()
		driver.fault = nil
		driver.mu.Unlock()
		time.Sleep(awaitedInterval)
		if got := published(); got[0].Capacity.Value() != 100*gibibyte+512*mebibyte || got[0].Annotations[localstorage.WhyAnnotation] != "" {
			t.Errorf("published %v", got)
		}
		if err := api.StorageV1().StorageClasses().Delete(ctx, "local", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := published(); len(got) != 0 {
			t.Errorf("got capacities %v, want none", got)
		}
	})
}
