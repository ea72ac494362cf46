package compile

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxMessage is how many bytes the message of a condition may have.
const maxMessage = 32768

// setCondition sets a condition, and returns the conditions with it. A condition whose status
// stays keeps its time. The time of another one is zero. The conditions must be a copy: they
// are changed in place.
func setCondition[T, R ~string](
	conditions []metav1.Condition, generation int64, kind T, status metav1.ConditionStatus, reason R, message string,
) []metav1.Condition {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	wanted := metav1.Condition{
		Type: string(kind), Status: status, ObservedGeneration: generation, Reason: string(reason), Message: message,
	}
	for i := range conditions {
		if conditions[i].Type != wanted.Type {
			continue
		}
		if conditions[i].Status == status {
			wanted.LastTransitionTime = conditions[i].LastTransitionTime
		}
		conditions[i] = wanted
		return conditions
	}
	return append(conditions, wanted)
}

// removeCondition removes a condition, and returns the others. The conditions must be a copy:
// they are changed in place.
func removeCondition[T ~string](conditions []metav1.Condition, kind T) []metav1.Condition {
	return slices.DeleteFunc(conditions, func(condition metav1.Condition) bool { return condition.Type == string(kind) })
}

// statusOf returns the status of a condition that says whether something is so.
func statusOf(is bool) metav1.ConditionStatus {
	if is {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
