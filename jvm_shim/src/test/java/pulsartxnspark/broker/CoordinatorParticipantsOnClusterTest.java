package pulsartxnspark.broker;

import pulsartxnspark.store.OnCluster;

@OnCluster
class CoordinatorParticipantsOnClusterTest extends CoordinatorParticipantsTest {}
