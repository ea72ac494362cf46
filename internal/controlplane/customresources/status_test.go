package customresources

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// A write of the status returns names and conditions without schemas, in all formats. What
// the server gets, and other answers, are whole.
func TestWithoutSchemas(t *testing.T) {
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		stored := widgetDefinition("1", 1, "red")
		stored.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
			content, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, apiextensionsv1.SchemeGroupVersion), stored)
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("Content-Type", contentType)
			w.Write(content)
		}))
		defer server.Close()
		config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: contentType, AcceptContentTypes: contentType}}
		config.Wrap(WithoutSchemas)
		client := clientset.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
		for _, test := range []struct {
			what  string
			do    func() (*apiextensionsv1.CustomResourceDefinition, error)
			whole bool
		}{
			{"get", func() (*apiextensionsv1.CustomResourceDefinition, error) {
				return client.Get(t.Context(), stored.Name, metav1.GetOptions{})
			}, true},
			{"update", func() (*apiextensionsv1.CustomResourceDefinition, error) {
				return client.Update(t.Context(), stored, metav1.UpdateOptions{})
			}, true},
			{"update of the status", func() (*apiextensionsv1.CustomResourceDefinition, error) {
				return client.UpdateStatus(t.Context(), stored, metav1.UpdateOptions{})
			}, false},
			{"update of the status before the end", func() (*apiextensionsv1.CustomResourceDefinition, error) {
				now := metav1.Now()
				stored.DeletionTimestamp = &now
				return client.UpdateStatus(t.Context(), stored, metav1.UpdateOptions{})
			}, true},
		} {
			got, err := test.do()
			if err != nil {
				t.Fatal(err)
			}
			want := stored.DeepCopy()
			if !test.whole {
				want.ManagedFields = nil
				for i := range want.Spec.Versions {
					want.Spec.Versions[i].Schema = nil
				}
			}
			got.TypeMeta, want.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
			gotText, _ := json.Marshal(got)
			wantText, _ := json.Marshal(want)
			if string(gotText) != string(wantText) {
				t.Errorf("%s with %s returns %s, want %s", test.what, contentType, gotText, wantText)
			}
		}
	}
}

// A refused write returns the refusal.
func TestRefusedStatus(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	config.Wrap(WithoutSchemas)
	client := clientset.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.UpdateStatus(t.Context(), widgetDefinition("1", 1, "red"), metav1.UpdateOptions{}); err == nil {
		t.Error("a refused write succeeds")
	}
}
