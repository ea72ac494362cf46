package apiserver

import (
	"fmt"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Stored is an object as an API server, perhaps an older one, has stored it.
type Stored struct {
	Kind schema.GroupVersionKind
	// Object has the type of Kind. It is nil if Kubernetes has no such type. Then the
	// object is a custom resource, or of a kind that was removed.
	Object runtime.Object
	// Fault says why the API server cannot read Object. It is nil if it can.
	Fault error

	encoder runtime.Encoder
}

// Encode returns the object in the form in which it was stored.
func (s *Stored) Encode() ([]byte, error) { return runtime.Encode(s.encoder, s.Object) }

// StoredObjects reads objects as the API server will read them from its datastore.
type StoredObjects struct {
	codecs []serializer.CodecFactory
	kinds  runtime.Decoder
}

// NewStoredObjects returns a StoredObjects for all kinds of this version of Kubernetes.
func NewStoredObjects() *StoredObjects {
	none := runtime.NewScheme()
	return &StoredObjects{
		codecs: []serializer.CodecFactory{legacyscheme.Codecs, apiextensionsapiserver.Codecs, aggregatorscheme.Codecs},
		kinds: recognizer.NewDecoder(
			protobuf.NewSerializer(none, none), json.NewSerializerWithOptions(json.DefaultMetaFactory, none, none, json.SerializerOptions{})),
	}
}

// Read reads what was stored, unencrypted. It fails if the text is no object, or is
// damaged.
func (s *StoredObjects) Read(text []byte) (*Stored, error) {
	var kind *schema.GroupVersionKind
	for _, codecs := range s.codecs {
		var versioned runtime.Object
		var err error
		versioned, kind, err = codecs.UniversalDeserializer().Decode(text, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read stored object: %w", err)
		}
		// A text may name its kind in other letters ("Kind"), which the object then lacks.
		versioned.GetObjectKind().SetGroupVersionKind(*kind)
		stored := &Stored{Kind: *kind, Object: versioned, encoder: encoderOf(codecs, text)}
		// The API server uses the internal version.
		_, stored.Fault = runtime.Decode(codecs.UniversalDecoder(), text)
		return stored, nil
	}
	if kind == nil {
		_, kind, _ = s.kinds.Decode(text, nil, nil)
	}
	if kind == nil || kind.Kind == "" {
		return nil, fmt.Errorf("read stored object: it has no kind")
	}
	return &Stored{Kind: *kind}, nil
}

// encoderOf returns what encodes as text is encoded.
func encoderOf(codecs serializer.CodecFactory, text []byte) runtime.Encoder {
	mediaType := runtime.ContentTypeProtobuf
	if len(text) > 0 && text[0] == '{' {
		mediaType = runtime.ContentTypeJSON
	}
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	return info.Serializer
}
