package session

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

// readOnly is the name of the policy, and of the user to whom it applies.
const readOnly = "kedge-look-back"

// readOnlyPatience limits how long the API may take to enforce the policy.
const readOnlyPatience = time.Minute

// forbidWrites makes a kubeconfig one of a user who reads everything and changes nothing. Requests that only ask what a change would do, as
// `kubectl diff` does, are answered.
func forbidWrites(ctx context.Context, kubeconfig string) error {
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	admin, err := clientcmd.NewDefaultClientConfig(*cfg, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := addPolicy(ctx, client); err != nil {
		return err
	}
	reader := rest.CopyConfig(admin)
	reader.Impersonate = rest.ImpersonationConfig{UserName: readOnly, Groups: []string{"system:masters"}}
	if err := awaitPolicy(ctx, reader); err != nil {
		return err
	}
	for _, user := range cfg.AuthInfos {
		user.Impersonate, user.ImpersonateGroups = readOnly, reader.Impersonate.Groups
	}
	if err := clientcmd.WriteToFile(*cfg, kubeconfig); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// addPolicy adds the policy.
func addPolicy(ctx context.Context, client kubernetes.Interface) error {
	policies := client.AdmissionregistrationV1()
	_, err := policies.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: readOnly},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.OperationAll},
				Rule:       admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
			}}}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "reader", Expression: "request.userInfo.username == '" + readOnly + "'"}},
			Validations: []admissionv1.Validation{{
				Expression: "has(request.dryRun) && request.dryRun",
				Message:    "this is the state of an earlier time, and cannot be changed: pipe what you need to `kubectl apply` of your cluster",
			}},
		},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = policies.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: readOnly},
			Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: readOnly, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("forbid changes: %w", err)
	}
	return nil
}

// awaitPolicy waits until the API refuses a change. It asks for one that changes nothing, so that the state stays as it was.
func awaitPolicy(ctx context.Context, reader *rest.Config) error {
	client, err := kubernetes.NewForConfig(reader)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, loop.FirstWait/10, readOnlyPatience, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Patch(ctx, metav1.NamespaceDefault, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		return apierrors.IsInvalid(err), nil
	})
	if err != nil {
		return fmt.Errorf("forbid changes: the API does not enforce the policy: %w", err)
	}
	return nil
}
