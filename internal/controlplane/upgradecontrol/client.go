package upgradecontrol

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// PlanName is the name of the Plan that `kedge upgrade` makes.
const PlanName = "kedge"

const (
	// askPause is the time between two looks at a Plan, and askPatience how long one may take.
	askPause    = 2 * time.Second
	askPatience = 10 * time.Second
)

// Client is how `kedge upgrade` reaches Plans.
type Client struct{ Plans dynamic.ResourceInterface }

// NewClient makes a Client.
func NewClient(client dynamic.Interface) Client { return Client{client.Resource(upgrades.Plans)} }

// List returns all Plans.
func (c Client) List(ctx context.Context) ([]*upgrades.Plan, error) {
	list, err := c.Plans.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, explain(err)
	}
	plans := make([]*upgrades.Plan, 0, len(list.Items))
	for i := range list.Items {
		plan, err := decode(&list.Items[i])
		if err != nil {
			return nil, err
		}
		plans = append(plans, plan)
	}
	return plans, nil
}

// Begin makes the Plan PlanName with a spec. A Plan of this name with the same spec that has not
// ended stays, and one with another spec goes on with the new one. One that has ended is replaced
// by a new one, which tries everything again.
func (c Client) Begin(ctx context.Context, spec upgrades.PlanSpec) error {
	plan := &upgrades.Plan{
		TypeMeta:   metav1.TypeMeta{APIVersion: upgrades.Plans.GroupVersion().String(), Kind: "Plan"},
		ObjectMeta: metav1.ObjectMeta{Name: PlanName},
		Spec:       spec,
	}
	live, err := c.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case live.Status.ObservedGeneration == live.Generation && ended(&live.Status):
		precondition := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion}}
		if err := c.Plans.Delete(ctx, PlanName, precondition); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("replace the Plan that has ended: %w", err)
		}
	case equality.Semantic.DeepEqual(live.Spec, spec):
		return nil
	default:
		plan.ResourceVersion = live.ResourceVersion
	}
	object, err := encode(plan)
	if err != nil {
		return err
	}
	if plan.ResourceVersion == "" {
		_, err = c.Plans.Create(ctx, object, metav1.CreateOptions{})
	} else {
		_, err = c.Plans.Update(ctx, object, metav1.UpdateOptions{})
	}
	return explain(err)
}

// explain says what it means if the API does not know the kind of Plans.
func explain(err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the servers of this cluster run a kedge that is too old for Plans: upgrade them with install.sh first: %w", err)
	}
	return err
}

// ErrStopped is the end of a Plan that has not done what it was made for.
var ErrStopped = errors.New("the Plan has stopped")

// Await waits for the end of the Plan, and calls tell with each change in words. It fails with
// ErrStopped if the Plan has stopped. While the server is being upgraded, the API may not answer.
func (c Client) Await(ctx context.Context, tell func(string)) error {
	before, silent := &upgrades.Plan{}, false
	for {
		plan, err := c.get(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsNotFound(err):
			return fmt.Errorf("the Plan was deleted: %w", err)
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return err
		case err != nil:
			if !silent {
				tell("The API does not answer. Its server is probably being upgraded")
			}
			silent = true
		default:
			silent = false
			if plan.Status.ObservedGeneration != plan.Generation {
				break // the status is about an earlier spec
			}
			for _, line := range changes(before, plan) {
				tell(line)
			}
			before = plan
			if plan.Status.Phase == upgrades.Stopped {
				return fmt.Errorf("%w: %s", ErrStopped, plan.Status.Message)
			}
			if plan.Status.Phase == upgrades.Complete {
				return nil
			}
		}
		if err := loop.Sleep(ctx, askPause); err != nil {
			return err
		}
	}
}

// changes tells in words what has changed in the status of a Plan.
func changes(before, now *upgrades.Plan) (lines []string) {
	told := map[string]string{}
	for _, n := range before.Status.Nodes {
		told[n.Name] = describe(n)
	}
	for _, n := range now.Status.Nodes {
		if text := describe(n); text != told[n.Name] && n.State != upgrades.NodePending {
			lines = append(lines, text)
		}
	}
	same := before.Status.Phase == now.Status.Phase
	if now.Status.Phase == upgrades.Upgrading || now.Status.Phase == upgrades.Stopped || same && before.Status.Message == now.Status.Message {
		return lines // the lines of nodes say more, or Await returns it
	}
	return append(lines, string(now.Status.Phase)+": "+now.Status.Message)
}

// describe tells in words what a Plan has done with a node.
func describe(n upgrades.NodeStatus) string {
	text := fmt.Sprintf("Node %s: %s", n.Name, strings.ToLower(string(n.State)))
	if n.Message != "" {
		text += ": " + n.Message
	}
	return text
}

func (c Client) get(ctx context.Context) (*upgrades.Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	object, err := c.Plans.Get(ctx, PlanName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return decode(object)
}

func decode(object *unstructured.Unstructured) (*upgrades.Plan, error) {
	plan := new(upgrades.Plan)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, plan); err != nil {
		return nil, fmt.Errorf("read Plan %s: %w", object.GetName(), err)
	}
	return plan, nil
}

func encode(plan *upgrades.Plan) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(plan)
	if err != nil {
		return nil, fmt.Errorf("encode Plan %s: %w", plan.Name, err)
	}
	return &unstructured.Unstructured{Object: fields}, nil
}
