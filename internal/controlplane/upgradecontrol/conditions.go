package upgradecontrol

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// setConditions sets the conditions that follow from the rest of a status. Users wait for them
// with `kubectl wait`.
func setConditions(s *upgrades.PlanStatus, now time.Time) {
	for _, phase := range []upgrades.Phase{upgrades.Complete, upgrades.Stopped} {
		condition := metav1.Condition{
			Type: string(phase), Status: metav1.ConditionFalse, Reason: string(s.Phase),
			ObservedGeneration: s.ObservedGeneration, LastTransitionTime: metav1.NewTime(now),
		}
		if s.Phase == phase {
			condition.Status, condition.Message = metav1.ConditionTrue, s.Message
		}
		meta.SetStatusCondition(&s.Conditions, condition)
	}
}
