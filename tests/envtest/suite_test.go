package envtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

const patience = time.Minute

// webhooks is what the project's manifests would install.
func webhooks() *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "memos.test.kedge.dev"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "memos.test.kedge.dev", AdmissionReviewVersions: []string{"v1"},
			SideEffects:   ptr.To(admissionv1.SideEffectClassNone),
			FailurePolicy: ptr.To(admissionv1.Fail),
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{
				Name: "memo", Namespace: "default", Path: ptr.To("/validate-test-kedge-dev-v1-memo"),
			}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"test.kedge.dev"}, APIVersions: []string{"v1"}, Resources: []string{"memos"}},
			}},
		}},
	}
}

func TestSuite(t *testing.T) {
	ctrl.SetLogger(zap.New(zap.UseDevMode(true)))
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{"crd"},
		WebhookInstallOptions: envtest.WebhookInstallOptions{ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{webhooks()}},
	}
	cfg, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	}()
	scheme := clientgoscheme.Scheme
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	hooks := environment.WebhookInstallOptions
	manager, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:        scheme,
		Metrics:       metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: hooks.LocalServingHost, Port: hooks.LocalServingPort, CertDir: hooks.LocalServingCertDir}),
	})
	if err == nil {
		err = setUp(manager)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- manager.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the webhook's server", func() error {
		conn, err := tls.Dial("tcp", net.JoinHostPort(hooks.LocalServingHost, fmt.Sprint(hooks.LocalServingPort)), &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	api, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}

	memo := &Memo{ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "default"}, Spec: MemoSpec{Text: "buy milk"}}
	if err := api.Create(ctx, memo); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKeyFromObject(memo)
	eventually(t, "the copy", func() error {
		var copied corev1.ConfigMap
		if err := api.Get(ctx, key, &copied); err != nil {
			return err
		}
		if copied.Data["text"] != "buy milk" {
			return fmt.Errorf("the copy is %v", copied.Data)
		}
		if err := api.Get(ctx, key, memo); err != nil || !memo.Status.Copied {
			return fmt.Errorf("the status is %+v, %v", memo.Status, err)
		}
		return nil
	})

	loud := &Memo{ObjectMeta: metav1.ObjectMeta{Name: "loud", Namespace: "default"}, Spec: MemoSpec{Text: "BUY MILK"}}
	if err := api.Create(ctx, loud); err == nil || !strings.Contains(err.Error(), "do not shout") {
		t.Errorf("a memo that shouts: %v", err)
	}
	long := &Memo{ObjectMeta: metav1.ObjectMeta{Name: "long", Namespace: "default"}, Spec: MemoSpec{Text: strings.Repeat("a", 101)}}
	if err := api.Create(ctx, long); !apierrors.IsInvalid(err) {
		t.Errorf("a memo that is too long: %v", err)
	}

	if err := api.Delete(ctx, memo); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v: %v", what, err, last)
	}
}
