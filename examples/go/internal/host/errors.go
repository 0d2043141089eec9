package host

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Info is the ErrorInfo that every refusal of the sidecar carries, nil for any other error.
func Info(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "foldline.dev" {
			return info
		}
	}
	return nil
}

// Away says that the sidecar is down, starting, hanging or full: the agent goes on without it, and the call is
// repeated later under its request id, since it may have got through.
func Away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	case codes.ResourceExhausted:
		return Info(err).GetReason() == "OVERLOADED"
	default:
		return false
	}
}
