package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/throwaway/keeper"
)

const (
	// kindsPatience is how long the API may take to know kinds whose definitions were just applied.
	kindsPatience = 20 * time.Second
	// kubectlPatience is how long one request of kubectl may take. Without it kubectl gives up after 32 s, and on a slow
	// machine the API needs longer to describe its kinds for the first time. --timeout limits everything together.
	kubectlPatience = time.Hour
	// lookPause is the pause between two looks at objects that are not ready yet.
	lookPause = 200 * time.Millisecond
)

// unknownKind is a part of kubectl's message about an object whose kind the API does not know yet.
//
//upstream:relies-on k8s.io/cli-runtime/pkg/resource/mapper.go mapper.infoForData
const unknownKind = "ensure CRDs are installed first"

// apply applies the manifests, in their order, and returns the objects.
func (o *Options) apply(ctx context.Context, ready keeper.Report) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, manifest := range o.Manifests {
		output, err := o.applyOne(ctx, ready, manifest)
		if err != nil {
			return nil, fmt.Errorf("apply %s: %w", manifest, err)
		}
		found, err := decode(output)
		if err != nil {
			return nil, fmt.Errorf("apply %s: %w", manifest, err)
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// applyOne runs kubectl, and runs it again while the API does not know kinds that the manifest itself defines.
func (o *Options) applyOne(ctx context.Context, ready keeper.Report, manifest string) ([]byte, error) {
	for began := time.Now(); ; time.Sleep(lookPause) {
		cmd := exec.CommandContext(ctx, o.Executable, "kubectl", "apply", "--server-side", "--recursive", "--output=json",
			"--request-timeout="+kubectlPatience.String(), "--filename="+manifest)
		cmd.Env = environment(ready.Kubeconfig)
		var output, faults bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &faults
		err := cmd.Run()
		if err == nil {
			return output.Bytes(), nil
		}
		text := strings.TrimSpace(faults.String())
		if !strings.Contains(text, unknownKind) || time.Since(began) > kindsPatience || ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %s", err, text)
		}
	}
}

// decode reads kubectl's output: one object, or a list of them.
func decode(output []byte) ([]*unstructured.Unstructured, error) {
	var object unstructured.Unstructured
	if err := json.Unmarshal(output, &object); err != nil {
		return nil, fmt.Errorf("read kubectl's output: %w", err)
	}
	if !object.IsList() {
		return []*unstructured.Unstructured{&object}, nil
	}
	var objects []*unstructured.Unstructured
	err := object.EachListItem(func(item runtime.Object) error {
		objects = append(objects, item.(*unstructured.Unstructured))
		return nil
	})
	return objects, err
}

// waitReady waits until all objects are ready: what that means is a matter of their kind. It notes at once why a
// container cannot start: an object tells that late or never. It goes on waiting, because the user may push the image.
func (o *Options) waitReady(ctx context.Context, kubeconfig string, objects []*unstructured.Unstructured) error {
	api, err := newObjects(kubeconfig)
	if err != nil {
		return err
	}
	told := troubles{}
	for _, object := range objects {
		for {
			done, why, err := api.look(ctx, object)
			if err != nil {
				return fmt.Errorf("%s: %w", describe(object), err)
			}
			if done {
				break
			}
			for _, news := range told.look(ctx, api.pods) {
				o.Note(news)
			}
			if loop.Sleep(ctx, lookPause) != nil {
				return fmt.Errorf("wait for %s, which is not ready (%s): %w", describe(object), why+told.text(), context.Cause(ctx))
			}
		}
	}
	return nil
}

// objects reads any objects of the API.
type objects struct {
	client dynamic.Interface
	pods   corev1.PodsGetter
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newObjects(kubeconfig string) (*objects, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	known, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &objects{client, known.CoreV1(), restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(known.Discovery()))}, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1
	cfg.WarningHandlerWithContext = rest.NoWarnings{}
	return cfg, nil
}

// look tells whether an object is ready now, and if not, why. It fails if the object can never be ready.
func (o *objects) look(ctx context.Context, object *unstructured.Unstructured) (done bool, why string, err error) {
	kind := object.GroupVersionKind()
	mapping, err := o.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return false, "", err
	}
	now, err := o.client.Resource(mapping.Resource).Namespace(object.GetNamespace()).Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		if ctx.Err() != nil {
			return false, "no answer", nil
		}
		return false, "", err
	}
	result, err := status.Compute(now)
	if err != nil {
		return false, "", err
	}
	switch result.Status {
	case status.CurrentStatus:
		return true, "", nil
	case status.FailedStatus:
		return false, "", fmt.Errorf("failed: %s", result.Message)
	}
	return false, result.Message, nil
}

func describe(object *unstructured.Unstructured) string {
	text := strings.ToLower(object.GetKind()) + "/" + object.GetName()
	if object.GetNamespace() != "" {
		text += " in namespace " + object.GetNamespace()
	}
	return text
}
