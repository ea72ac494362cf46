// Follows k8s.io/kubernetes v1.37.2, pkg/kubelet/config/common.go.

package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the decoder knows pods by it
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// checkStaticPod returns why the kubelet refuses the content of a file of static pods, or nil.
// Upstream's kubelet says that only in its log.
//
//upstream:follows k8s.io/kubernetes/pkg/kubelet/config/common.go tryDecodeSinglePod applyDefaults
func (k *Kubelet) checkStaticPod(content []byte) error {
	if n := documents(content); n > 1 {
		return fmt.Errorf("it has %d documents, and the kubelet reads only the first: put each pod into a file of its own", n)
	}
	json, err := utilyaml.ToJSON(content)
	if err != nil {
		return err
	}
	object, kind, err := legacyscheme.Codecs.UniversalDecoder().Decode(json, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return fmt.Errorf("it has no Pod: the kind is %s of %q", kind.Kind, kind.GroupVersion())
	}
	if err != nil {
		return err
	}
	pod, is := object.(*api.Pod)
	if !is {
		return fmt.Errorf("it has no Pod: the kind is %s of %q", kind.Kind, kind.GroupVersion())
	}
	if pod.Name == "" {
		return errors.New("the pod has no metadata.name")
	}
	pod.Name += "-" + strings.ToLower(k.cfg.NodeName)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = k.cfg.NodeName
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
	if faults := validation.ValidatePodCreate(pod, options); len(faults) > 0 {
		return faults.ToAggregate()
	}
	_, resource, err := podutil.HasAPIObjectReference(pod)
	if err == nil && resource != "" {
		err = fmt.Errorf("the pod refers to %s, which static pods may not", resource)
	}
	return err
}

// documents returns how many documents of YAML have something in them.
func documents(content []byte) (n int) {
	decoder := utilyaml.NewYAMLToJSONDecoder(bytes.NewReader(content))
	for {
		var document any
		err := decoder.Decode(&document)
		if document != nil {
			n++
		}
		if errors.Is(err, io.EOF) || err != nil && document == nil {
			return n
		}
	}
}
