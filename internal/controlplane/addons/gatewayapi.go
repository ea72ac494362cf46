package addons

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kedge-dev/kedge/manifests"
)

const (
	definitionKind = "CustomResourceDefinition"

	// gatewayGroup is the API group of the Gateway API, and the end of the names of its
	// definitions and of its policy.
	gatewayGroup = "gateway.networking.k8s.io"
	// The definitions say in these annotations what they are
	// (sigs.k8s.io/gateway-api/pkg/consts).
	bundleVersionAnnotation = gatewayGroup + "/bundle-version"
	channelAnnotation       = gatewayGroup + "/channel"
	standardChannel         = "standard"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// definition is a CustomResourceDefinition of the Gateway API that kedge has.
type definition struct {
	Meta metav1.ObjectMeta `json:"metadata"`
	// text is the whole object as JSON, and digest what digestAnnotation says of it.
	text   []byte
	digest string
}

// gatewayDefinitions returns the definitions of the Gateway API that kedge has.
func gatewayDefinitions() ([]definition, error) {
	texts, err := manifests.GatewayDefinitions()
	if err != nil {
		return nil, err
	}
	all := make([]definition, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal(text, &all[i]); err != nil {
			return nil, fmt.Errorf("decode definition %d of the Gateway API: %w", i+1, err)
		}
		sum := sha256.Sum256(text)
		all[i].text, all[i].digest = text, hex.EncodeToString(sum[:8])
	}
	return all, nil
}

// withoutGatewayAPI splits the objects: into those that can be applied at once, and those
// that belong to the definitions of the Gateway API. The latter are the GatewayClass, and the
// policy for the definitions with its binding.
func withoutGatewayAPI(objects []*unstructured.Unstructured) (rest, belong []*unstructured.Unstructured) {
	for _, object := range objects {
		if object.GroupVersionKind().Group == gatewayGroup || strings.HasSuffix(object.GetName(), "."+gatewayGroup) {
			belong = append(belong, object)
		} else {
			rest = append(rest, object)
		}
	}
	return rest, belong
}

// applyGatewayAPI applies the definitions of the Gateway API, and then the objects that
// belong to them. Definitions that are as they should be cost one request
// for their metadata, because they are large. If the user has others, all stay as they are.
func (a *Addons) applyGatewayAPI(ctx context.Context, objects []*unstructured.Unstructured) error {
	wanted, err := gatewayDefinitions()
	if err != nil {
		return err
	}
	live := make(map[string]*metav1.PartialObjectMetadata, len(wanted))
	for _, d := range wanted {
		found, err := a.metadata.Resource(definitions).Get(ctx, d.Meta.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			live[d.Meta.Name] = found
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("read definition %s: %w", d.Meta.Name, err)
		}
	}
	if reason := leaves(wanted, live); reason != "" {
		err := a.applyGatewayClasses(ctx, objects)
		if err == nil {
			a.log.Info(reason)
		}
		return err
	}
	for _, d := range wanted {
		if found := live[d.Meta.Name]; found != nil && found.Annotations[digestAnnotation] == d.digest {
			continue
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(d.text); err != nil {
			return fmt.Errorf("decode definition %s: %w", d.Meta.Name, err)
		}
		annotations := object.GetAnnotations()
		annotations[digestAnnotation] = d.digest
		object.SetAnnotations(annotations)
		// A definition is never deleted to create it again, as other objects are: the user's
		// objects would go with it.
		if _, err := a.resource(object).Apply(ctx, d.Meta.Name, object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("apply definition %s: %w", d.Meta.Name, err)
		}
	}
	_, _, err = a.applyAll(ctx, objects)
	return err
}

// applyGatewayClasses applies the GatewayClasses among objects, beside definitions that are
// the user's. If these lack the kind in kedge's version, there is nothing to apply.
func (a *Addons) applyGatewayClasses(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if object.GetKind() != gatewayClassKind {
			continue
		}
		if _, err := a.apply(ctx, object); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("apply GatewayClass %s: %w", object.GetName(), err)
		}
	}
	return nil
}

// leaves returns why kedge leaves the live definitions of the Gateway API alone, as a
// sentence for the user, or "". They belong together, so one that kedge must not change
// decides for all.
func leaves(wanted []definition, live map[string]*metav1.PartialObjectMetadata) string {
	var theirs []string
	var have string
	for _, d := range wanted {
		found := live[d.Meta.Name]
		if found == nil {
			continue
		}
		have = d.Meta.Annotations[bundleVersionAnnotation]
		has, channel := found.Annotations[bundleVersionAnnotation], found.Annotations[channelAnnotation]
		const stay = "so kedge does not change the definitions of the Gateway API"
		switch {
		case channel != "" && channel != standardChannel:
			return fmt.Sprintf("The CustomResourceDefinition %s is of the channel %s, and kedge has the channel %s, %s", d.Meta.Name, channel, standardChannel, stay)
		case isNewer(has, have):
			return fmt.Sprintf("The CustomResourceDefinition %s has version %s, and kedge has version %s, %s", d.Meta.Name, has, have, stay)
		case found.Annotations[digestAnnotation] == "":
			theirs = append(theirs, d.Meta.Name)
		}
	}
	if len(theirs) == 0 {
		return ""
	}
	return fmt.Sprintf("kedge does not change the definitions of the Gateway API, because it did not create %s. kedge has their version %s. "+
		"To have kedge keep them up to date: `kedge kubectl annotate crd %s %s=wanted`, and restart kedge",
		strings.Join(theirs, ", "), have, strings.Join(theirs, " "), digestAnnotation)
}

// isNewer tells whether version a is newer than version b. A version that cannot be compared
// is not newer.
func isNewer(a, b string) bool {
	one, err := version.ParseSemantic(a)
	if err != nil {
		return false
	}
	other, err := version.ParseSemantic(b)
	return err == nil && other.LessThan(one)
}
