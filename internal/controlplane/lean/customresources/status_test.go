package customresources

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// A write of the status returns names and conditions without schemas, in all formats. What
// the server gets, and other answers, are whole.
func TestLean(t *testing.T) {
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
		config.Wrap(Lean)
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
	config.Wrap(Lean)
	client := clientset.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.UpdateStatus(t.Context(), widgetDefinition("1", 1, "red"), metav1.UpdateOptions{}); err == nil {
		t.Error("a refused write succeeds")
	}
}

// An informer lists first, and then its watch begins without initial events.
func TestListFirst(t *testing.T) {
	stored := widgetDefinition("1", 1, "red")
	watches := make(chan url.Values, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		if !r.URL.Query().Has("watch") {
			_ = json.NewEncoder(w).Encode(&apiextensionsv1.CustomResourceDefinitionList{
				TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinitionList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"},
				Items:    []apiextensionsv1.CustomResourceDefinition{*stored},
			})
			return
		}
		select {
		case watches <- r.URL.Query():
		case <-r.Context().Done():
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	config.Wrap(Lean)
	factory := externalversions.NewSharedInformerFactory(clientset.NewForConfigOrDie(config), 0)
	definitions := factory.Apiextensions().V1().CustomResourceDefinitions()
	informer := definitions.Informer()
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	select {
	case query := <-watches:
		if query.Has("sendInitialEvents") || query.Get("resourceVersion") != "1" {
			t.Errorf("the informer's watch asks for %v", query)
		}
	case <-time.After(time.Minute):
		t.Fatal("the informer does not watch")
	}
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer does not get its objects")
	}
	if _, err := definitions.Lister().Get(stored.Name); err != nil {
		t.Error(err)
	}
}
